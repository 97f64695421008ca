// The torch functions of bias_act and what they share. Semantics: gossamer/ops/bias_act.py
#pragma once

#include <optional>
#include <string>

#include "gossamer/strided.h"
#include "gossamer/torch/activation.h"
#include "gossamer/torch/rows.h"
#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor bias_act_cpu(const Tensor& x, std::optional<Tensor> bias, std::string activation);
Tensor bias_act_cuda(const Tensor& x, std::optional<Tensor> bias, std::string activation);

// A checked call: rows of x, the bias as the same row for all of them, a contiguous result.
struct BiasActCall {
  DType dtype;
  Activation activation;
  Tensor x, bias, out;  // x and bias may be copies; without a bias, x again
  bool has_bias;
  Strided<2> shape;
};

inline BiasActCall prepare_bias_act(const Tensor& x, const std::optional<Tensor>& bias, const std::string& activation) {
  const char* op = "bias_act";
  const DType dtype = dtype_of(x, op, "x");
  STD_TORCH_CHECK(x.dim() >= 1, op, ": x must have at least 1 dimension");
  const int64_t width = x.size(x.dim() - 1);
  if (bias) {
    check_matches(*bias, x, op, "bias");
    STD_TORCH_CHECK(bias->dim() == 1 && bias->size(0) == width, op, ": bias must have shape [x.shape[-1]]");
  }
  BiasActCall call{dtype, parse_activation(op, activation), x, x, empty_contiguous(x, x.sizes()), bias.has_value(), {}};
  if (x.numel() == 0) return call;
  const Rows rows = as_rows(x);
  call.x = rows.tensor;
  if (bias) call.bias = bias->is_contiguous() ? *bias : torch::stable::contiguous(*bias);
  // Without a bias rows that lie side by side are one.
  const bool flat = !bias && (rows.count == 1 || rows.stride == width);
  call.shape.dims = flat ? 1 : 2;
  call.shape.numel = rows.count * width;
  call.shape.size[0] = flat ? call.shape.numel : width;
  call.shape.size[1] = flat ? 1 : rows.count;
  for (int k = 0; k < 2; ++k) call.shape.stride[k][0] = 1;
  call.shape.stride[0][1] = rows.stride;
  return call;
}

}  // namespace gossamer
