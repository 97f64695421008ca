// The activation functions that ops know by name, shared by the CPU vectors and CUDA. M as in math/gelu.h, with rcp
// right for infinity, and Fit one of its tails.
#pragma once

#include "gossamer/activation.h"
#include "gossamer/math/gelu.h"
#include "gossamer/math/silu.h"

namespace gossamer {

namespace math {
namespace {

// x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2), which keeps its digits where e^x is small. Above 20 the
// fraction is 1 in float32.
template <class M, class V>
GOSSAMER_INLINE V mish(V x) {
  const V e = M::exp(M::negative(x - 20.0f, x, V{} + 20.0f));
  const V n = e * (e + 2.0f);
  return x * (n * M::rcp(n + 2.0f));
}

// NaN stays NaN.
template <class M, class V>
GOSSAMER_INLINE V relu(V x) {
  return M::negative(x, V{}, x);
}

template <class M, class Fit, Activation A, class V>
GOSSAMER_INLINE V activate(V x) {
  if constexpr (A == Activation::gelu) return gelu_erf<M, Fit>(x);
  if constexpr (A == Activation::gelu_tanh) return gelu_tanh<M>(x);
  if constexpr (A == Activation::silu) return silu<M>(x);
  if constexpr (A == Activation::mish) return mish<M>(x);
  const V positive = relu<M>(x);
  return A == Activation::relu ? positive : positive * positive;
}

}  // namespace
}  // namespace math

namespace {

template <Activation A>
struct ActivationIs {
  static constexpr Activation value = A;
};

// Calls `f` with an ActivationIs, so that the choice is made once and not for each element; not at all for none.
template <class F>
void for_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::none:
      return;
    case Activation::gelu:
      return f(ActivationIs<Activation::gelu>{});
    case Activation::gelu_tanh:
      return f(ActivationIs<Activation::gelu_tanh>{});
    case Activation::silu:
      return f(ActivationIs<Activation::silu>{});
    case Activation::mish:
      return f(ActivationIs<Activation::mish>{});
    case Activation::relu2:
      return f(ActivationIs<Activation::relu2>{});
    case Activation::relu:
      return f(ActivationIs<Activation::relu>{});
  }
}

}  // namespace
}  // namespace gossamer
