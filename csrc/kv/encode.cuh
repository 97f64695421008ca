// Eight entries of a row to their codes, from 0 on. Meaning: gossamer/ops/kv_codec.py
//
// Scales are rounded up, so that codes fit without clamping (see there). Adding kRound rounds a number to an
// integer, which is then in the lower bits: conversions have a quarter of the throughput.
#pragma once

#include <type_traits>

#include "gossamer/cuda/vector.cuh"
#include "kv/cells.cuh"
#include "kv/codec.cuh"

namespace gossamer::cuda {

constexpr float kRound = 12582912.0f;  // 1.5 * 2^23, even; its lower 16 bits are 0

// The lower 16 bits of floats, two to a word.
GOSSAMER_INLINE Cells lower_bits(const float (&y)[kChunk]) {
  Cells codes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes.words[i] = __byte_perm(__float_as_uint(y[2 * i]), __float_as_uint(y[2 * i + 1]), 0x5410);
  }
  return codes;
}

// ---- extremes, two channels at a time ---------------------------------------------------
template <class T>
using Pair = std::conditional_t<std::is_same_v<T, float>, float2,
                                std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>>;

GOSSAMER_INLINE float least(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
GOSSAMER_INLINE float most(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
GOSSAMER_INLINE float2 least(float2 a, float2 b) { return {least(a.x, b.x), least(a.y, b.y)}; }
GOSSAMER_INLINE float2 most(float2 a, float2 b) { return {most(a.x, b.x), most(a.y, b.y)}; }
template <class P>
GOSSAMER_INLINE P least(P a, P b) {
  return __hmin2_nan(a, b);
}
template <class P>
GOSSAMER_INLINE P most(P a, P b) {
  return __hmax2_nan(a, b);
}
GOSSAMER_INLINE bool finite(float x) { return (__float_as_uint(x) & kInfinity) != kInfinity; }

// NaN where one of the numbers is NaN.
template <class T>
struct Extremes {
  Pair<T> low, high;

  __device__ __forceinline__ explicit Extremes(Pair<T> first) : low(first), high(first) {}
  __device__ __forceinline__ void add(Pair<T> x) {
    low = least(low, x);
    high = most(high, x);
  }
  __device__ __forceinline__ static Range range(float low, float high) {
    Range r(low, high);
    r.finite = finite(low) && finite(high);
    return r;
  }
  __device__ __forceinline__ Range of_first() const { return range(float(low.x), float(high.x)); }
  __device__ __forceinline__ Range of_second() const { return range(float(low.y), float(high.y)); }
  __device__ __forceinline__ Range of_both() const {
    return range(least(float(low.x), float(low.y)), most(float(high.x), float(high.y)));
  }
};

// Of n channels of a row in shared memory, a multiple of 8.
template <class T>
GOSSAMER_INLINE Range range_of(const T* row, int n) {
  Extremes<T> extremes(reinterpret_cast<const Pair<T>*>(row)[0]);
#pragma unroll 4
  for (int c = 0; c < n; c += vector_length<T>) {
    const uint4 piece = *reinterpret_cast<const uint4*>(row + c);
    const Pair<T>* pairs = reinterpret_cast<const Pair<T>*>(&piece);
#pragma unroll
    for (int i = 0; i < vector_length<T> / 2; ++i) extremes.add(pairs[i]);
  }
  return extremes.of_both();
}

// ---- encoders: of group g of a lane's row in shared memory --------------------------------

// A row that cannot be scaled has the codes of zeros.
template <class T>
GOSSAMER_INLINE void clear(T* row, int n) {
  for (int c = 0; c < n; c += vector_length<T>) *reinterpret_cast<uint4*>(row + c) = uint4{};
}

// One scale for the row; codes from -2^(bits-1) on are stored from 0 on.
template <class T>
struct SignedEncoder {
  const T* row;
  uint16_t scale_bits;
  float factor, round;

  __device__ __forceinline__ SignedEncoder(const KvFormat& f, T* row, int bits) : row(row) {
    Range range = range_of(row, f.head_dim);
    range.low = fminf(range.low, 0.0f);
    range.high = fmaxf(range.high, 0.0f);
    const Coding coding = signed_coding(range, bits);
    scale_bits = coding.scale_bits;
    factor = coding.factor;
    round = kRound + static_cast<float>(1 << (bits - 1));
    if (scale_bits == kHalfNan) clear(row, f.head_dim);
  }
  __device__ __forceinline__ Cells operator()(int g) const {
    float x[kChunk];
    load_floats(row + g * kChunk, x);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) x[k] = __fadd_rn(__fmul_rn(x[k], factor), round);
    return lower_bits(x);
  }
};

template <class T>
struct Fp8Encoder {
  const T* row;
  uint16_t scale_bits;
  float factor;

  __device__ __forceinline__ Fp8Encoder(const KvFormat& f, T* row, int) : row(row) {
    const Coding coding = fp8_coding(range_of(row, f.head_dim));
    scale_bits = coding.scale_bits;
    factor = coding.factor;
    if (scale_bits == kHalfNan) clear(row, f.head_dim);
  }
  __device__ __forceinline__ Cells operator()(int g) const {
    float x[kChunk];
    load_floats(row + g * kChunk, x);
    Cells codes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 y = {__fmul_rn(x[2 * i], factor), __fmul_rn(x[2 * i + 1], factor)};
      codes.words[i] = __byte_perm(__nv_cvt_float2_to_fp8x2(y, __NV_SATFINITE, __NV_E4M3), 0, 0x4140);
    }
    return codes;
  }
};

// Scale and minimum of each channel. NaN and infinity have a factor of 0, and 0 for their code.
template <class T>
struct AsymmetricEncoder {
  const T* row;
  const float2* coding;  // minimum, factor: of channels, or of 32 of them
  int group_stride;      // 0: of channels

  __device__ __forceinline__ Cells operator()(int g) const {
    float x[kChunk];
    load_floats(row + g * kChunk, x);
    float2 shared = {};
    if (group_stride > 0) shared = coding[g / (kGroup / kChunk) * group_stride];
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      const float2 c = group_stride > 0 ? shared : coding[g * kChunk + k];
      x[k] = __fadd_rn(fmaxf(__fmul_rn(__fsub_rn(x[k], c.x), c.y), 0.0f), kRound);
    }
    return lower_bits(x);
  }
};

// Steps of a calibration: the intervals that entries are in, relative to a float16 unit; the scale that fits them best.
template <class T>
struct ProfileEncoder {
  const T* row;
  const KvFormat& f;
  const float* weights;          // of channels, or null
  uint16_t scale_bits = 0x3c00;  // 1
  float factor = 1.0f;

  __device__ __forceinline__ ProfileEncoder(const KvFormat& f, const T* row, const float* weights)
      : row(row), f(f), weights(weights) {
    if (f.scales != Scales::row) return;
    double total = 0;  // so that the order of the sum does not show in a float16
    int channels = 0;
    for (int g = 0; g < f.head_dim / kChunk; ++g) {
      if (f.group_bits[g] == 0) continue;
      float x[kChunk];
      load_floats(row + g * kChunk, x);
      double squares = 0;
#pragma unroll
      for (int k = 0; k < kChunk; ++k) squares += static_cast<double>(x[k]) * static_cast<double>(x[k]);
      const double step = best_step(f.group_bits[g]);
      total += squares * (step * step);
      channels += kChunk;
    }
    const __half unit = __float2half_rn(static_cast<float>(sqrt(total / channels)));
    factor = finite_half(unit) ? reciprocal(__half2float(unit)) : NAN;
    scale_bits = finite_half(unit) && factor != 0.0f ? fitted_scale() : finite_half(unit) ? 0 : kHalfNan;
  }
  // The lower end of the interval of x; its middle is half a step above.
  __device__ __forceinline__ float inside(float x, float half) const {
    const float y = __fmul_rn(x, factor);
    return fminf(fmaxf(isnan(y) ? 0.0f : y, -half), half - 0.5f);
  }
  __device__ __forceinline__ uint16_t fitted_scale() const {
    double product = 0, square = 0;
    for (int g = 0; g < f.head_dim / kChunk; ++g) {
      if (f.group_bits[g] == 0) continue;
      const float half = static_cast<float>(1 << f.group_bits[g] >> 1);
      float x[kChunk];
      load_floats(row + g * kChunk, x);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        const double value = floorf(inside(x[k], half)) + 0.5f;
        const double weight = weights ? weights[g * kChunk + k] : 1.0f;
        product += x[k] * value * weight;
        square += value * value * weight;
      }
    }
    const __half scale = __float2half_rn(static_cast<float>(product / square));
    return finite_half(scale) ? __half_as_ushort(scale) : kHalfNan;
  }
  __device__ __forceinline__ Cells operator()(int g) const {
    const float half = static_cast<float>(1 << f.group_bits[g] >> 1);
    float x[kChunk];
    load_floats(row + g * kChunk, x);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) x[k] = __fadd_rd(inside(x[k], half), kRound + half);
    return lower_bits(x);
  }
};

}  // namespace gossamer::cuda
