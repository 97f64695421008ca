#include "silu_mul.h"

#include "gated.h"

namespace gossamer {

Tensor silu_mul_cpu(const Tensor& x) { return gated_cpu("silu_mul", x, Activation::silu); }

}  // namespace gossamer
