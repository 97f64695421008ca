// 16 bytes of elements in registers, and their conversion to and from float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gossamer/common.h"

namespace gossamer::cuda {

constexpr int kVectorBytes = 16;

template <class T>
constexpr int vector_length = kVectorBytes / sizeof(T);

GOSSAMER_INLINE float to_float(float x) { return x; }
GOSSAMER_INLINE float to_float(__half x) { return __half2float(x); }
GOSSAMER_INLINE float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
GOSSAMER_INLINE T from_float(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (__is_same(T, __half)) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

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

// Special functions of one instruction each: ex2.approx (2 ulp) and rcp.approx (1 ulp).
struct FastMath {
  GOSSAMER_INLINE float abs(float x) { return fabsf(x); }
  GOSSAMER_INLINE float negative(float x, float yes, float no) { return x < 0.0f ? yes : no; }
  GOSSAMER_INLINE float below(float x, float limit, float yes) { return x < limit ? yes : 0.0f; }
  GOSSAMER_INLINE float exp_normal(float x) { return exp(x); }
  GOSSAMER_INLINE float exp(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
  }
  GOSSAMER_INLINE float rcp(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
};

}  // namespace gossamer::cuda
