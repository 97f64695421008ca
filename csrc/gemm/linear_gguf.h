// The torch functions of linear_gguf, gated_mlp_gguf and dequantize_gguf. Semantics: gossamer/ops/linear_gguf.py, ...
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor linear_gguf_cpu(const Tensor& x, std::vector<Tensor> weights, std::string types,
                       const std::optional<Tensor>& bias);
Tensor gated_mlp_gguf_cpu(const Tensor& x, std::vector<Tensor> gate_up, std::string gate_up_types,
                          std::vector<Tensor> down, std::string down_types, const std::optional<Tensor>& gate_up_bias,
                          const std::optional<Tensor>& down_bias);
Tensor dequantize_gguf_cpu(const Tensor& weight, std::string type, ScalarType dtype);

}  // namespace gossamer
