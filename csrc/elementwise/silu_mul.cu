#include "gated.cuh"
#include "silu_mul.h"

namespace gossamer {

Tensor silu_mul_cuda(const Tensor& x) { return gated_cuda<Activation::silu>("silu_mul", x); }

}  // namespace gossamer
