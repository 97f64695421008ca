// GELU from exp and one reciprocal, shared by the CPU vectors and CUDA.
//
// M supplies, for the value type V (float, or a vector of floats): abs, rcp, exp, gauss(x) =
// exp(-x^2/2), which is 0 for infinite x, and negative(x, a, b) = x < 0 ? a : b.
#pragma once

#include "gossamer/common.h"

namespace gossamer::math {
namespace {

// The lower tail of the normal distribution is Phi(-u) = exp(-u^2/2) R(u) for u >= 0, where
// R(u) = erfcx(u/sqrt 2)/2. With t = 1/(1 + k u), R is fitted by t * polynomial(t) over [0, 14],
// minimax in relative error, so the tail keeps its digits where 1 + erf(x) would cancel.
struct TailFit8 {  // relative error 1.5e-7: float32 results
  static constexpr float k = 0.3f;
  template <class V>
  GOSSAMER_INLINE V r(V t) {
    V p = t * 0.0356753224f - 0.157205313f;
    p = p * t + 0.206357261f;
    p = p * t - 0.0536870241f;
    p = p * t + 0.128563377f;
    p = p * t + 0.0999129722f;
    p = p * t + 0.120754038f;
    return (p * t + 0.119629294f) * t;
  }
};
struct TailFit6 {  // relative error 4.7e-6: 16-bit results, whose own rounding is 100 times larger
  static constexpr float k = 0.31f;
  template <class V>
  GOSSAMER_INLINE V r(V t) {
    V p = t * -0.0739276563f + 0.180446074f;
    p = p * t + 0.0157494235f;
    p = p * t + 0.133427301f;
    p = p * t + 0.1204419f;
    return (p * t + 0.123860642f) * t;
  }
};

// x * Phi(x)
template <class M, class Fit, class V>
GOSSAMER_INLINE V gelu_erf(V x) {
  const V t = M::rcp(1.0f + Fit::k * M::abs(x));
  const V tail = M::gauss(x) * Fit::r(t);
  return x * M::negative(x, tail, 1.0f - tail);
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), written as x * sigmoid(2 * ...)
template <class M, class V>
GOSSAMER_INLINE V gelu_tanh(V x) {
  constexpr float a = 1.5957691216057308f;  // 2 sqrt(2/pi)
  constexpr float b = 0.044715f * a;
  const V minus_2u = -(x * (a + b * (x * x)));
  return x * M::rcp(1.0f + M::exp(minus_2u));
}

}  // namespace
}  // namespace gossamer::math
