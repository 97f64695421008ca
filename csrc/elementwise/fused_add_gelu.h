// The torch functions of fused_add_gelu and what they share. Semantics: gossamer/ops/fused_add_gelu.py
#pragma once

#include <string>

#include "gossamer/torch/broadcast.h"

namespace gossamer {

Tensor fused_add_gelu_cpu(const Tensor& x, const Tensor& bias, std::string approximate);
Tensor fused_add_gelu_cuda(const Tensor& x, const Tensor& bias, std::string approximate);

inline Elementwise<2> prepare_fused_add_gelu(const Tensor& x, const Tensor& bias, const std::string& approximate) {
  STD_TORCH_CHECK(x.dim() >= 1, "fused_add_gelu: x must have at least 1 dimension");
  STD_TORCH_CHECK(bias.dim() == 1 && bias.size(0) == x.size(x.dim() - 1),
                  "fused_add_gelu: bias must have shape [x.shape[-1]]");
  STD_TORCH_CHECK(approximate == "none" || approximate == "tanh",
                  "fused_add_gelu: approximate must be 'none' or 'tanh'");
  return prepare_elementwise<2>({x, bias}, "fused_add_gelu");
}

}  // namespace gossamer
