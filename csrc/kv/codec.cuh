// Values to codes and back on the GPU. Meaning: gossamer/ops/kv_codec.py
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "gossamer/common.h"
#include "kv/kv_format.h"

namespace gossamer::cuda {

GOSSAMER_INLINE bool finite_half(__half h) { return (__half_as_ushort(h) & 0x7c00) != 0x7c00; }

// Products and sums below are written out with intrinsics so that the compiler cannot fuse them: every
// backend rounds at the same places.
GOSSAMER_INLINE float reciprocal(float scale) { return scale == 0.0f ? 0.0f : __frcp_rn(scale); }

struct Range {
  float low, high;
  bool finite = true;

  __device__ __forceinline__ Range(float low, float high) : low(low), high(high) {}
  __device__ __forceinline__ void add(float x) {
    low = fminf(low, x);
    high = fmaxf(high, x);
    finite = finite && (__float_as_uint(x) & kInfinity) != kInfinity;
  }
};

// How a set of values that share a scale is encoded: code = round((x - minimum) * factor).
struct Coding {
  uint16_t scale_bits;
  float minimum, factor;
  uint16_t minimum_bits = 0;
};

GOSSAMER_INLINE Coding signed_coding(const Range& range, int bits) {
  const float positive = range.high, negative = -range.low;
  const bool flip = positive > negative;
  const float larger = fmaxf(positive, negative), smaller = fminf(positive, negative);
  const int most = 1 << (bits - 1);
  const float step = fmaxf(__fmul_rn(larger, 1.0f / most), __fmul_rn(smaller, 1.0f / (most - 1)));
  const __half scale = __float2half_ru(step + 0.0f);
  if (!range.finite || !finite_half(scale)) return {kHalfNan, 0.0f, 0.0f};
  const float factor = reciprocal(__half2float(scale));
  return {static_cast<uint16_t>(__half_as_ushort(scale) | (flip ? 0x8000 : 0)), 0.0f, flip ? -factor : factor};
}

GOSSAMER_INLINE Coding fp8_coding(const Range& range) {
  const __half scale = __float2half_ru(__fmul_rn(fmaxf(range.high, -range.low), 1.0f / kFp8Max) + 0.0f);
  if (!range.finite || !finite_half(scale)) return {kHalfNan, 0.0f, 0.0f};
  return {__half_as_ushort(scale), 0.0f, reciprocal(__half2float(scale))};
}

GOSSAMER_INLINE Coding asymmetric_coding(const Range& range, int bits) {
  const __half minimum = __float2half_rd(range.low + 0.0f);
  if (!range.finite || !finite_half(minimum)) return {kHalfNan, 0.0f, 0.0f};
  const float low = __half2float(minimum);
  const float inverse = 1.0f / static_cast<float>((1 << bits) - 1);
  const __half scale = __float2half_ru(__fmul_rn(__fsub_rn(range.high, low), inverse) + 0.0f);
  if (!finite_half(scale)) return {kHalfNan, 0.0f, 0.0f};
  return {__half_as_ushort(scale), low, reciprocal(__half2float(scale)), __half_as_ushort(minimum)};
}

// least <= code <= most; 0 for NaN.
GOSSAMER_INLINE int quantize(float x, float minimum, float factor, int least, int most) {
  return min(max(__float2int_rn(__fmul_rn(__fsub_rn(x, minimum), factor)), least), most);
}

GOSSAMER_INLINE uint32_t fp8_bits(float x, float factor) {
  const float y = fminf(fmaxf(__fmul_rn(x, factor), -kFp8Max), kFp8Max);
  return __nv_cvt_float_to_fp8(y, __NV_SATFINITE, __NV_E4M3);
}

GOSSAMER_INLINE float fp8_value(uint32_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), __NV_E4M3)));
}

}  // namespace gossamer::cuda
