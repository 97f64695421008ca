#pragma once

#include "gossamer/cpu/vec.h"
#include "gossamer/math/activation.h"

namespace gossamer {
namespace {

// The activation of x for a result of type T. 16-bit results get a shorter gelu, whose reciprocal never meets infinity.
template <Activation A, class T>
GOSSAMER_INLINE F32 activate(F32 x, T) {
  if constexpr (A == Activation::gelu && sizeof(T) == 2) {
    return math::gelu_erf<VecMath16, math::TailFit6>(x);
  } else {
    return math::activate<VecMath, math::TailFit8, A>(x);
  }
}

// The same in float32, where the choice is known only now.
GOSSAMER_INLINE F32 activate(Activation activation, F32 x) {
  F32 result = x;
  for_activation(activation, [&](auto choice) { result = activate<decltype(choice)::value>(x, float{}); });
  return result;
}

}  // namespace
}  // namespace gossamer
