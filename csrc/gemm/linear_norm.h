// The torch functions of linear_norm. Semantics: gossamer/ops/linear_norm.py
#pragma once

#include <tuple>

#include "gemm/linear_call.h"

namespace gossamer {

std::tuple<Tensor, Tensor> linear_norm_cpu(const Tensor& x, const Tensor& weight, const Tensor& residual,
                                           const Tensor& norm_weight, const std::optional<Tensor>& bias,
                                           const std::optional<Tensor>& norm_bias, std::string norm, double eps);

}  // namespace gossamer
