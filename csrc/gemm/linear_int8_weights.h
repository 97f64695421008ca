// The torch function of linear_int8_weights. Semantics: gossamer/ops/linear_int8_weights.py
#pragma once

#include <optional>

#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor linear_int8_weights_cpu(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                               const std::optional<Tensor>& bias);

}  // namespace gossamer
