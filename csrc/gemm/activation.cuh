// The activations of GEMM epilogues, on float32. They are for results of 16 bits: approximations stay below a
// tenth of their rounding where results are not tiny.
#pragma once

#include "gossamer/activation.h"
#include "gossamer/cuda/fast_math.cuh"
#include "gossamer/math/gelu.h"
#include "gossamer/math/silu.h"

namespace gossamer::cuda {

// x P(x), where P is the normal distribution, as x / (1 + e^-z) with z = ln(P / (1 - P)): z / x is smooth and even, and
// log2(e) z / x is fitted here over |x| < 4.5 with x^2 as its argument. P is off by 1.3e-6 at most, and by 1.3e-4 of
// itself for |x| < 3. That takes 12 instructions, not the 17 of math/gelu.h, which is right in float32 as well: they
// cost time and power even where another warpgroup multiplies meanwhile.
GOSSAMER_INLINE float short_gelu(float x) {
  const float s = fminf(x * x, 20.25f);
  float p = -1.68900910e-7f * s + 8.25026609e-6f;
  p = p * s - 1.38095743e-4f;
  p = p * s - 1.60798542e-4f;
  p = p * s + 1.04921436e-1f;
  p = p * s + 2.30217753f;
  return x * FastMath::rcp(1.0f + FastMath::exp2(-x * p));
}

// tanh(ln(1 + e)) = n / (n + 2), n = e (e + 2); 1 from x = 20 on
GOSSAMER_INLINE float mish(float x) {
  const float e = FastMath::exp(fminf(x, 20.0f)), n = e * (e + 2.0f);
  return x * (n * FastMath::rcp(n + 2.0f));
}

template <Activation A>
GOSSAMER_INLINE float activated(float x) {
  if constexpr (A == Activation::gelu) return short_gelu(x);
  if constexpr (A == Activation::gelu_tanh) return math::gelu_tanh<FastMath>(x);
  if constexpr (A == Activation::silu) return math::silu<FastMath>(x);
  if constexpr (A == Activation::mish) return mish(x);
  const float positive = x < 0.0f ? 0.0f : x;  // NaN stays
  if constexpr (A == Activation::relu2) return positive * positive;
  return A == Activation::relu ? positive : x;
}

}  // namespace gossamer::cuda
