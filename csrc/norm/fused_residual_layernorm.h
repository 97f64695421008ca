// The torch functions of fused_residual_layernorm. Semantics: gossamer/ops/fused_residual_layernorm.py
#pragma once

#include <optional>
#include <tuple>

#include "gossamer/torch/tensor.h"

namespace gossamer {

// (normed, new residual)
std::tuple<Tensor, Tensor> fused_residual_layernorm_cpu(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                        std::optional<Tensor> bias, double eps,
                                                        std::optional<Tensor> input_bias);
std::tuple<Tensor, Tensor> fused_residual_layernorm_cuda(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                         std::optional<Tensor> bias, double eps,
                                                         std::optional<Tensor> input_bias);

}  // namespace gossamer
