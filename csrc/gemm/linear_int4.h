// The torch function of linear_int4. Semantics: gossamer/ops/linear_int4.py
#pragma once

#include <optional>

#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor linear_int4_cpu(const Tensor& x, const Tensor& codes, const Tensor& scale, const Tensor& zero,
                       const std::optional<Tensor>& bias);

}  // namespace gossamer
