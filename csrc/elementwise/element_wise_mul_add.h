// The torch functions of element_wise_mul_add. Semantics: gossamer/ops/element_wise_mul_add.py
#pragma once

#include "gossamer/torch/broadcast.h"

namespace gossamer {

Tensor element_wise_mul_add_cpu(const Tensor& a, const Tensor& b, const Tensor& c);
Tensor element_wise_mul_add_cuda(const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace gossamer
