// The torch function of quantize_int8. Semantics: gossamer/ops/quantize_int8.py
#pragma once

#include <tuple>

#include "gossamer/torch/tensor.h"

namespace gossamer {

std::tuple<Tensor, Tensor> quantize_int8_cpu(const Tensor& x);

}  // namespace gossamer
