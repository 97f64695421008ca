// 16 bytes of elements in registers, and their conversion to and from float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "gossamer/common.h"

namespace gossamer::cuda {

constexpr int kVectorBytes = 16;

template <class T>
constexpr int vector_length = kVectorBytes / sizeof(T);

// N elements that travel as one load or store.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};

template <class T, int N>
GOSSAMER_INLINE Pack<T, N> load(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}

template <class T, int N>
GOSSAMER_INLINE void store(T* p, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

// Packs to floats and back, two 16-bit elements per instruction where the hardware can.
template <class T, int N>
GOSSAMER_INLINE void unpack(const Pack<T, N>& pack, float (&x)[N]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {
    // A bfloat16 is the upper half of a float: one shift or mask each, where the library's
    // conversion extracts the element first.
    const uint32_t* words = reinterpret_cast<const uint32_t*>(pack.value);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      x[i] = __uint_as_float(words[i / 2] << 16);
      x[i + 1] = __uint_as_float(words[i / 2] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = static_cast<float>(pack.value[i]);
  }
}

template <class T, int N>
GOSSAMER_INLINE Pack<T, N> pack(const float (&x)[N]) {
  Pack<T, N> packed;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      if constexpr (std::is_same_v<T, __half>) {
        reinterpret_cast<__half2&>(packed.value[i]) = __floats2half2_rn(x[i], x[i + 1]);
      } else {
        reinterpret_cast<__nv_bfloat162&>(packed.value[i]) = __floats2bfloat162_rn(x[i], x[i + 1]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) packed.value[i] = static_cast<T>(x[i]);
  }
  return packed;
}

// N elements, in as few aligned loads as they take, to floats.
template <class T, int N>
GOSSAMER_INLINE void load_floats(const T* from, float (&x)[N]) {
  constexpr int length = vector_length<T> < N ? vector_length<T> : N;
#pragma unroll
  for (int i = 0; i < N; i += length) {
    float part[length];
    unpack<T, length>(load<T, length>(from + i), part);
#pragma unroll
    for (int k = 0; k < length; ++k) x[i + k] = part[k];
  }
}

}  // namespace gossamer::cuda
