// The torch functions of silu_mul. Semantics: gossamer/ops/silu_mul.py
#pragma once

#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor silu_mul_cpu(const Tensor& x);
Tensor silu_mul_cuda(const Tensor& x);

}  // namespace gossamer
