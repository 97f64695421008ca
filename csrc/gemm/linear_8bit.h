// The torch functions of linear_int8 and linear_fp8. Semantics: gossamer/ops/linear_int8.py, linear_fp8.py
#pragma once

#include "gemm/linear_call.h"

namespace gossamer {

Tensor linear_int8_cuda(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                        const std::optional<Tensor>& bias, ScalarType dtype);
Tensor linear_fp8_cuda(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                       const std::optional<Tensor>& bias, ScalarType dtype);

}  // namespace gossamer
