// The activations that products end with, on vectors.
#pragma once

#include "activation.h"
#include "gossamer/cpu/vec.h"
#include "gossamer/math/gelu.h"
#include "gossamer/math/silu.h"

namespace gossamer {
namespace {

// tanh(ln(1 + e)) = n / (n + 2), n = e (e + 2); 1 from x = 20 on
GOSSAMER_INLINE F32 mish(F32 x) {
  const F32 e = VecMath::exp(select(x < 20.0f, x, splat(20.0f))), n = e * (e + 2.0f);
  return x * (n / (n + 2.0f));
}

GOSSAMER_INLINE F32 activate(Activation activation, F32 x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::gelu:
      return math::gelu_erf<VecMath, math::TailFit8>(x);
    case Activation::gelu_tanh:
      return math::gelu_tanh<VecMath>(x);
    case Activation::silu:
      return math::silu<VecMath>(x);
    case Activation::mish:
      return mish(x);
    default:
      break;
  }
  const F32 positive = select(x < 0.0f, F32{}, x);  // NaN stays
  return activation == Activation::relu2 ? positive * positive : positive;
}

}  // namespace
}  // namespace gossamer
