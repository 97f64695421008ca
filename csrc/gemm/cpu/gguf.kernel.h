// Weights in GGUF's blocks as floats, 32 at a time; how the bytes lie is in gossamer/ops/gguf.py, in plain torch.
// Include from *.kernel.cpp files alone.
#pragma once

#include "digits.kernel.h"
#include "expanded.kernel.h"
#include "gemm/gguf.h"
#include "nibbles.kernel.h"

namespace gossamer {
namespace {

// The same with a fifth bit of weight i in bit i of `high`.
GOSSAMER_INLINE void expand_fives(float d, float m, const uint8_t* bytes, uint32_t high, F32 (&w)[kVectors]) {
  constexpr int half = kVectors / 2;
  GOSSAMER_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const I32 some = bytes_at(bytes + v % half * kLanes) >> (v < half ? 0 : 4);
    const U32 bit = ((U32{} + high) >> reinterpret_cast<U32>(lanes_from(v * kLanes))) & 1;
    w[v] = floats((some & 15) | reinterpret_cast<I32>(bit << 4)) * d + m;
  }
}

// ---- one type each: run `i` of 32 weights of a row
// -------------------------------------------------------------------
template <class T>
struct Floats {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    GOSSAMER_UNROLL
    for (int v = 0; v < kVectors; ++v) w[v] = load(reinterpret_cast<const T*>(row) + i * kRun + v * kLanes);
  }
};

struct Q4_0 {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    const uint8_t* p = row + i * 18;
    const float d = half_at(p);
    Nibbles::expand(Nibbles::of(d, -8 * d), p + 2, w);
  }
#if GOSSAMER_LANES == 16
  GOSSAMER_INLINE __m512i codes(const uint8_t* a, const uint8_t* b, int64_t i) {
    return two_rows_of_nibbles(a + i * 18 + 2, b + i * 18 + 2);
  }
  GOSSAMER_INLINE __m512 factors(const uint8_t* const (&rows)[kDotColumns], int64_t i) {
    return factors_around(8, [&](int c) { return read<uint16_t>(rows[c] + i * 18); });
  }
#endif
};

struct Q4_1 {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    const uint8_t* p = row + i * 20;
    Nibbles::expand(Nibbles::of_halves(p), p + 4, w);
  }
#if GOSSAMER_LANES == 16
  GOSSAMER_INLINE __m512i codes(const uint8_t* a, const uint8_t* b, int64_t i) {
    return two_rows_of_nibbles(a + i * 20 + 4, b + i * 20 + 4);
  }
  GOSSAMER_INLINE __m512 factors(const uint8_t* const (&rows)[kDotColumns], int64_t i) {
    return factor_pairs([&](int c) { return read<int32_t>(rows[c] + i * 20); });
  }
#endif
};

struct Q5_0 {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    const uint8_t* p = row + i * 22;
    const float d = half_at(p);
    expand_fives(d, -16 * d, p + 6, read<uint32_t>(p + 2), w);
  }
};

struct Q5_1 {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    const uint8_t* p = row + i * 24;
    expand_fives(half_at(p), half_at(p + 2), p + 8, read<uint32_t>(p + 4), w);
  }
};

struct Q8_0 {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    const uint8_t* p = row + i * 34;
    const float d = half_at(p);
    GOSSAMER_UNROLL
    for (int v = 0; v < kVectors; ++v) w[v] = floats(bytes_at(p + 2 + v * kLanes) << 24 >> 24) * d;
  }
#if GOSSAMER_LANES == 16
  GOSSAMER_INLINE __m512i codes(const uint8_t* a, const uint8_t* b, int64_t i) {
    return two_rows_of_bytes(a + i * 34 + 2, b + i * 34 + 2);
  }
  GOSSAMER_INLINE __m512 factors(const uint8_t* const (&rows)[kDotColumns], int64_t i) {
    return factors_around(128, [&](int c) { return read<uint16_t>(rows[c] + i * 34); });
  }
#endif
};

// Scale and minimum of run i of 8, six bits each in 12 bytes.
struct SixBits {
  int scale, least;
  GOSSAMER_INLINE SixBits of(const uint8_t* p, int i) {
    if (i < 4) return {p[i] & 63, p[i + 4] & 63};
    return {(p[i + 4] & 15) | p[i - 4] >> 6 << 4, p[i + 4] >> 4 | p[i] >> 6 << 4};
  }
};

struct Q4_K {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    const uint8_t* p = row + i / 8 * 144;
    const int run = static_cast<int>(i % 8);
    const SixBits six = SixBits::of(p + 4, run);
    const Nibbles n = Nibbles::of(half_at(p) * six.scale, -half_at(p + 2) * six.least);
    GOSSAMER_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      w[v] = Nibbles::look_up(n, bytes_at(p + 16 + run / 2 * 32 + v * kLanes) >> run % 2 * 4);
    }
  }
};

struct Q5_K {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    const uint8_t* p = row + i / 8 * 176;
    const int run = static_cast<int>(i % 8);
    const SixBits six = SixBits::of(p + 4, run);
    const float d = half_at(p) * six.scale, m = -half_at(p + 2) * six.least;
    GOSSAMER_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const I32 low = bytes_at(p + 48 + run / 2 * 32 + v * kLanes) >> run % 2 * 4;
      const I32 high = bytes_at(p + 16 + v * kLanes) >> run;
      w[v] = floats((low & 15) | (high & 1) << 4) * d + m;
    }
  }
};

struct Q6_K {
  GOSSAMER_INLINE void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) {
    const uint8_t* p = row + i / 8 * 210;
    const int half = static_cast<int>(i % 8 / 4), quarter = static_cast<int>(i % 4);
    const auto* scales = reinterpret_cast<const int8_t*>(p + 192) + half * 8 + quarter * 2;
    const float d = half_at(p + 208);
    GOSSAMER_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const I32 low = bytes_at(p + half * 64 + quarter % 2 * 32 + v * kLanes) >> quarter / 2 * 4;
      const I32 high = bytes_at(p + 128 + half * 32 + v * kLanes) >> quarter * 2;
      const float scale = d * scales[v * kLanes / 16];
      w[v] = floats(((low & 15) | (high & 3) << 4) - 32) * scale;
    }
  }
};

// f(Type) for the type of the weights.
template <class F>
GOSSAMER_INLINE void with_type(GgufType type, F f) {
  switch (type) {
    case GgufType::f32:
      return f(Floats<float>{});
    case GgufType::f16:
      return f(Floats<f16_t>{});
    case GgufType::bf16:
      return f(Floats<bf16_t>{});
    case GgufType::q4_0:
      return f(Q4_0{});
    case GgufType::q4_1:
      return f(Q4_1{});
    case GgufType::q5_0:
      return f(Q5_0{});
    case GgufType::q5_1:
      return f(Q5_1{});
    case GgufType::q8_0:
      return f(Q8_0{});
    case GgufType::q4_k:
      return f(Q4_K{});
    case GgufType::q5_k:
      return f(Q5_K{});
    case GgufType::q6_k:
      return f(Q6_K{});
  }
}

}  // namespace
}  // namespace gossamer
