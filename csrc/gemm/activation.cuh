// The activations that products end with, on float32. Names as in gossamer/ops/activations.py.
#pragma once

#include "gossamer/cuda/fast_math.cuh"
#include "gossamer/math/gelu.h"
#include "gossamer/math/silu.h"

namespace gossamer::cuda {

enum class Activation { none, gelu, gelu_tanh, silu, mish, relu2, relu };

// For results of 16 bits: approximations stay below a hundredth of their rounding.
template <Activation A>
GOSSAMER_INLINE float activated(float x) {
  if constexpr (A == Activation::gelu) return math::gelu_erf<FastMath, math::TailFit6>(x);
  if constexpr (A == Activation::gelu_tanh) return math::gelu_tanh<FastMath>(x);
  if constexpr (A == Activation::silu) return math::silu<FastMath>(x);
  if constexpr (A == Activation::mish) {  // tanh(ln(1 + e)) = n / (n + 2), n = e (e + 2); 1 from x = 20 on
    const float e = FastMath::exp(fminf(x, 20.0f)), n = e * (e + 2.0f);
    return x * (n * FastMath::rcp(n + 2.0f));
  }
  if constexpr (A == Activation::relu2) {
    const float y = x < 0.0f ? 0.0f : x;  // NaN stays
    return y * y;
  }
  if constexpr (A == Activation::relu) return x < 0.0f ? 0.0f : x;
  return x;
}

}  // namespace gossamer::cuda
