// The torch functions of linear_gguf and dequantize_gguf. Semantics: gossamer/ops/linear_gguf.py, dequantize_gguf.py
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor linear_gguf_cpu(const Tensor& x, std::vector<Tensor> weights, std::string types,
                       const std::optional<Tensor>& bias);
Tensor dequantize_gguf_cpu(const Tensor& weight, std::string type, ScalarType dtype);

}  // namespace gossamer
