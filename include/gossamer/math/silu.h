// SiLU from exp and one reciprocal, shared by the CPU vectors and CUDA. M as in math/gelu.h.
#pragma once

#include "gossamer/common.h"

namespace gossamer::math {
namespace {

// x * sigmoid(x). The reciprocal of an infinite exponential is 0: large negative x give -0, and -inf gives NaN
// as torch's silu does. So M::rcp must be right for infinity, which VecMath16's is not.
template <class M, class V>
GOSSAMER_INLINE V silu(V x) {
  return x * M::rcp(1.0f + M::exp(-x));
}

}  // namespace
}  // namespace gossamer::math
