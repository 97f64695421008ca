// The torch functions of linear_int8 and linear_fp8. Semantics: gossamer/ops/linear_int8.py, linear_fp8.py
#pragma once

#include "gemm/linear_call.h"

namespace gossamer {

inline void check_codes(const char* op, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        ScalarType dtype) {
  check_weight(x, weight, op, "weight");
  STD_TORCH_CHECK(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(), op,
                  ": weight must have the dtype and device of x");
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16, op,
                  ": dtype must be float32, float16 or bfloat16");
  if (!bias) return;
  STD_TORCH_CHECK(bias->scalar_type() == dtype && bias->device() == x.device() && bias->dim() == 1 &&
                      bias->size(0) == weight.size(0),
                  op, ": bias must have shape [n], the result's dtype and the device of x");
}

Tensor linear_int8_cpu(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                       const std::optional<Tensor>& bias, ScalarType dtype);
Tensor linear_int8_cuda(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                        const std::optional<Tensor>& bias, ScalarType dtype);
Tensor linear_fp8_cuda(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                       const std::optional<Tensor>& bias, ScalarType dtype);

}  // namespace gossamer
