// The torch functions of linear_act. Semantics: gossamer/ops/linear_act.py
#pragma once

#include <string>

#include "gemm/linear_call.h"

namespace gossamer {

Tensor linear_act_cpu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, std::string activation);
Tensor linear_act_cuda(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                       std::string activation);

inline void check_linear_act(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const char* op = "linear_act";
  dtype_of(x, op, "x");
  check_matches(weight, x, op, "weight");
  check_weight(x, weight, op, "weight");
  check_bias(bias, x, weight.size(0), op, "bias");
}

}  // namespace gossamer
