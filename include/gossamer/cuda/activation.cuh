#pragma once

#include <type_traits>

#include "gossamer/cuda/fast_math.cuh"
#include "gossamer/math/activation.h"

namespace gossamer::cuda {

// The activation of x for a result of type T. 16-bit results get the shorter polynomial of gelu: at 4 bytes per
// element an H200 has about 30 instruction slots for each before arithmetic, not memory, sets the time.
template <class T, Activation A>
GOSSAMER_INLINE float activate(float x) {
  using Fit = std::conditional_t<sizeof(T) == 4, math::TailFit8, math::TailFit6>;
  return math::activate<FastMath, Fit, A>(x);
}

}  // namespace gossamer::cuda
