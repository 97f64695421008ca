// The torch functions of gelu_mul. Semantics: gossamer/ops/gelu_mul.py
#pragma once

#include <string>

#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor gelu_mul_cpu(const Tensor& x, std::string approximate);
Tensor gelu_mul_cuda(const Tensor& x, std::string approximate);

}  // namespace gossamer
