// The torch functions of rmsnorm. Semantics: gossamer/ops/rmsnorm.py
#pragma once

#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor rmsnorm_cpu(const Tensor& x, const Tensor& weight, double eps);
Tensor rmsnorm_cuda(const Tensor& x, const Tensor& weight, double eps);

}  // namespace gossamer
