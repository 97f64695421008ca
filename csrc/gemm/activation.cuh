// The activations that products end with, two float32 at a time.
//
// All but relu are x n / d, and two of them share a reciprocal: 1 / a = b / (a b). That takes 3 multiplications for one
// special function, of which an SM does a fourth as many per cycle. They are for results of 16 bits: approximations
// stay below a fourth of their rounding.
#pragma once

#include "gemm/activation.h"
#include "gossamer/cuda/fast_math.cuh"

namespace gossamer::cuda {

// For gelu, 1 + e^-z with z = ln(P / (1 - P)), where P is the normal distribution: z / x is smooth and even. This is
// log2(e) z / x, fitted over |x| < 6 with x^2 as its argument: P is off by 3e-7 at most, and by 5e-4 of itself down to
// x = -4. One special function and three instructions less than the fits of math/gelu.h.
GOSSAMER_INLINE float gelu_exponent(float x) {
  const float s = fminf(x * x, 36.0f);
  float p = -7.178693348e-11f * s + 9.030269487e-9f;
  p = p * s - 4.603690731e-7f;
  p = p * s + 1.215566155e-5f;
  p = p * s - 1.626410318e-4f;
  p = p * s - 8.865622124e-5f;
  p = p * s + 1.048333822e-1f;
  p = p * s + 2.302207427f;
  return -x * p;
}

// x n / d as two factors.
struct Fraction {
  float n, d;
};

template <Activation A>
GOSSAMER_INLINE Fraction fraction(float x) {
  constexpr float kLog2e = 1.4426950408889634f;
  if constexpr (A == Activation::mish) {  // tanh(ln(1 + e)) = n / (n + 2), n = e (e + 2); 1 from x = 20 on
    const float e = FastMath::exp2(kLog2e * fminf(x, 20.0f)), n = e * (e + 2.0f);
    return {x * n, n + 2.0f};
  } else {
    float exponent = -kLog2e * x;  // silu
    if constexpr (A == Activation::gelu) exponent = gelu_exponent(x);
    // 2 sqrt(2 / pi) (x + 0.044715 x^3)
    if constexpr (A == Activation::gelu_tanh) exponent = -kLog2e * x * (1.5957691216f + 0.0713548163f * (x * x));
    return {x, 1.0f + FastMath::exp2(fminf(exponent, 60.0f))};  // products of two stay finite
  }
}

template <Activation A>
GOSSAMER_INLINE float2 activated(float x, float y) {
  if constexpr (A == Activation::none) return {x, y};
  if constexpr (A == Activation::relu || A == Activation::relu2) {
    x = x < 0.0f ? 0.0f : x;  // NaN stays
    y = y < 0.0f ? 0.0f : y;
    return A == Activation::relu ? float2{x, y} : float2{x * x, y * y};
  }
  const Fraction a = fraction<A>(x), b = fraction<A>(y);
  const float r = FastMath::rcp(a.d * b.d);
  return {a.n * (r * b.d), b.n * (r * a.d)};
}

}  // namespace gossamer::cuda
