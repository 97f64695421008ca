// Codes of 4 bits as floats. Include from *.kernel.cpp files alone.
#pragma once

#include "expanded.kernel.h"

namespace gossamer {
namespace {

template <class T>
GOSSAMER_INLINE T read(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

GOSSAMER_INLINE float half_at(const void* p) {
#if GOSSAMER_LANES > 4
  return _cvtsh_ss(read<uint16_t>(p));
#else
  const f16_t some[kLanes] = {read<f16_t>(p)};
  return load(some)[0];
#endif
}

// kLanes bytes, each in a lane.
GOSSAMER_INLINE I32 bytes_at(const uint8_t* p) {
#if GOSSAMER_LANES == 16
  return reinterpret_cast<I32>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif GOSSAMER_LANES == 8
  return reinterpret_cast<I32>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  using Bytes = uint8_t __attribute__((vector_size(kLanes)));
  return __builtin_convertvector(load_raw<Bytes>(p), I32);
#endif
}

GOSSAMER_INLINE I32 lanes_from(int first) {
  I32 lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = first + i;
  return lanes;
}

GOSSAMER_INLINE F32 floats(I32 x) { return __builtin_convertvector(x, F32); }

// code * d + m, where codes of 4 bits are the lowest bits of the lanes of `some`.
struct Nibbles {
#if GOSSAMER_LANES == 16
  // All 16 values in a register, and codes choose among them: no mask, no conversion, one permutation.
  F32 values;
  GOSSAMER_INLINE Nibbles of(float d, float m) { return {floats(lanes_from(0)) * d + m}; }
  // d and m are neighbours in memory, as float16: converted together, in every lane at once.
  GOSSAMER_INLINE Nibbles of_halves(const void* p) {
    const __m512 pairs = _mm512_cvtph_ps(_mm256_set1_epi32(read<int32_t>(p)));
    const F32 d = reinterpret_cast<F32>(_mm512_moveldup_ps(pairs)),
              m = reinterpret_cast<F32>(_mm512_movehdup_ps(pairs));
    return {floats(lanes_from(0)) * d + m};
  }
  GOSSAMER_INLINE F32 look_up(const Nibbles& n, I32 some) {
    return reinterpret_cast<F32>(
        _mm512_permutexvar_ps(reinterpret_cast<__m512i>(some), reinterpret_cast<__m512>(n.values)));
  }
#else
  float d, m;
  GOSSAMER_INLINE Nibbles of(float d, float m) { return {d, m}; }
  GOSSAMER_INLINE Nibbles of_halves(const uint8_t* p) { return {half_at(p), half_at(p + 2)}; }
  GOSSAMER_INLINE F32 look_up(const Nibbles& n, I32 some) { return floats(some & 15) * n.d + n.m; }
#endif
  // 16 bytes: weight i in the lower half of byte i, weight i + 16 in the higher half.
  GOSSAMER_INLINE void expand(const Nibbles& n, const uint8_t* bytes, F32 (&w)[kVectors]) {
    constexpr int half = kVectors / 2;
    GOSSAMER_UNROLL
    for (int v = 0; v < half; ++v) {
      const I32 some = bytes_at(bytes + v * kLanes);
      w[v] = look_up(n, some);
      w[v + half] = look_up(n, some >> 4);
    }
  }
};

}  // namespace
}  // namespace gossamer
