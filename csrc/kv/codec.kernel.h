// Values to codes and back on the CPU. Meaning: gossamer/ops/kv_codec.py
// Include from *.kernel.cpp files alone.
#pragma once

#include "gossamer/cpu/vec.h"
#include "kv/kv_format.h"

namespace gossamer {
namespace {

constexpr int kRowBuffer = kMaxHeadDim + 16;  // entries; whole vectors may be read and written

GOSSAMER_INLINE I32 round_to_int(F32 x) {
#if GOSSAMER_LANES == 16
  return reinterpret_cast<I32>(_mm512_cvtps_epi32(reinterpret_cast<__m512>(x)));
#elif GOSSAMER_LANES == 8
  return reinterpret_cast<I32>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(x)));
#else
  I32 rounded;
  for (int k = 0; k < kLanes; ++k) rounded[k] = static_cast<int32_t>(__builtin_lrintf(x[k]));
  return rounded;
#endif
}

GOSSAMER_INLINE uint16_t half_bits(float x) {
  f16_t h[kLanes];
  store(h, splat(x));
  return h[0].bits;
}

GOSSAMER_INLINE float half_value(uint16_t bits) {
#if GOSSAMER_LANES >= 8
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
#else
  f16_t h[kLanes];
  for (int k = 0; k < kLanes; ++k) h[k].bits = bits;
  return load(h)[0];
#endif
}

// x >= 0, rounded up to float16.
GOSSAMER_INLINE uint16_t half_up(float x) {
  const uint16_t h = half_bits(x);
  return half_value(h) < x ? h + 1 : h;
}

GOSSAMER_INLINE uint16_t half_down(float x) {
  const uint16_t h = half_bits(x);
  if (!(half_value(h) > x)) return h;
  return h & 0x8000 ? h + 1 : h == 0 ? 0x8001 : h - 1;
}

GOSSAMER_INLINE bool finite_half(uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }

GOSSAMER_INLINE float reciprocal(float scale) { return scale == 0 ? 0 : 1 / scale; }

GOSSAMER_INLINE float absolute(float x) { return x < 0 ? -x : x; }

struct Range {
  float low, high;
  bool finite;
};

// Of n entries and of `start`.
GOSSAMER_INLINE Range range_of(const float* x, int n, float start) {
  F32 low = splat(start), high = low, bad{};
  for (int i = 0; i < n; i += kLanes) {
    const F32 v = load(x + i);
    bad += v - v;  // NaN for NaN and infinity
    low = select(v < low, v, low);
    high = select(v > high, v, high);
  }
  Range r{start, start, sum(bad) == 0};
  for (int k = 0; k < kLanes; ++k) {
    r.low = low[k] < r.low ? low[k] : r.low;
    r.high = high[k] > r.high ? high[k] : r.high;
  }
  return r;
}

// codes = (x - minimum) * factor, rounded, within [least, most].
GOSSAMER_INLINE void quantize(const float* x, int n, float minimum, float factor, int least, int most, int32_t* codes) {
  for (int i = 0; i < n; i += kLanes) {
    const F32 y = (load(x + i) - minimum) * factor;
    I32 c = round_to_int(select(y == y, y, F32{}));
    c = c < least ? I32{} + least : c > most ? I32{} + most : c;
    std::memcpy(codes + i, &c, sizeof c);
  }
}

// Signed codes of a row padded with zeros to a whole number of vectors; returns the bits of its scale.
GOSSAMER_INLINE uint16_t encode_signed(const float* x, int n, int bits, int32_t* codes) {
  const int most = 1 << (bits - 1);
  const Range range = range_of(x, n, 0);
  const float positive = range.high, negative = -range.low;
  const bool flip = positive > negative;
  const float larger = flip ? positive : negative, smaller = flip ? negative : positive;
  const float a = larger * (1.0f / most), b = smaller * (1.0f / (most - 1));
  const uint16_t scale = half_up(a > b ? a : b);
  if (!range.finite || !finite_half(scale)) {
    for (int i = 0; i < n; ++i) codes[i] = 0;
    return kHalfNan;
  }
  const float factor = reciprocal(half_value(scale));
  quantize(x, n, 0, flip ? -factor : factor, -most, most - 1, codes);
  return flip ? scale | 0x8000 : scale;
}

struct Asymmetric {
  uint16_t scale, minimum;
  float low, factor;  // the minimum, 1 / scale
};

GOSSAMER_INLINE Asymmetric asymmetric(float low, float high, bool finite, int bits) {
  const uint16_t minimum = half_down(low + 0.0f);  // no negative zero
  if (!finite || !finite_half(minimum)) return {kHalfNan, 0, 0, 0};
  const float low16 = half_value(minimum);
  const uint16_t scale = half_up((high - low16) * (1.0f / ((1 << bits) - 1)));
  if (!finite_half(scale)) return {kHalfNan, 0, 0, 0};
  return {scale, minimum, low16, reciprocal(half_value(scale))};
}

// |x| <= 448 to the nearest fp8_e4m3.
GOSSAMER_INLINE int32_t fp8_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  const uint32_t sign = (u >> 24) & 0x80u;
  u &= 0x7fffffffu;
  if (u < (121u << 23)) return sign | __builtin_lrintf(absolute(x) * 512);  // below 2^-6: steps of 2^-9
  return sign | (((u + 0x7ffffu + ((u >> 20) & 1u)) >> 20) - (120u << 3));
}

GOSSAMER_INLINE uint16_t encode_fp8(const float* x, int n, int32_t* codes) {
  const Range range = range_of(x, n, 0);
  const float largest = range.high > -range.low ? range.high : -range.low;
  const uint16_t scale = half_up(largest * (1.0f / kFp8Max) + 0.0f);  // no negative zero
  if (!range.finite || !finite_half(scale)) {
    for (int i = 0; i < n; ++i) codes[i] = 0;
    return kHalfNan;
  }
  const float factor = reciprocal(half_value(scale));
  for (int i = 0; i < n; ++i) {
    const float y = x[i] * factor;
    codes[i] = fp8_bits(y > kFp8Max ? kFp8Max : y < -kFp8Max ? -kFp8Max : y);
  }
  return scale;
}

}  // namespace
}  // namespace gossamer
