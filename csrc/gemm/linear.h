// The torch function of linear. Semantics: gossamer/ops/linear.py
#pragma once

#include <optional>

#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor linear_cpu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

}  // namespace gossamer
