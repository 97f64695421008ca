// The torch functions of scaled_softmax and what they share. Semantics: gossamer/ops/scaled_softmax.py
#pragma once

#include <cmath>

#include "gossamer/torch/rows.h"
#include "gossamer/torch/tensor.h"
#include "scaled_softmax.kernel.h"

namespace gossamer {

Tensor scaled_softmax_cpu(const Tensor& x, double scale);
Tensor scaled_softmax_cuda(const Tensor& x, double scale);

// A checked call; the tensors keep the memory alive that `work` points to.
struct ScaledSoftmaxCall {
  ScaledSoftmax work;
  Tensor x, out;
};

inline ScaledSoftmaxCall prepare_scaled_softmax(const Tensor& x, double scale) {
  const char* op = "scaled_softmax";
  ScaledSoftmaxCall call{};
  call.work.dtype = dtype_of(x, op, "x");
  STD_TORCH_CHECK(x.dim() >= 1, op, ": x must have at least 1 dimension");
  STD_TORCH_CHECK(std::isfinite(static_cast<float>(scale)), op, ": scale is ", scale, "; must be finite in float32");
  call.out = empty_contiguous(x, x.sizes());
  if (x.numel() == 0) return call;
  const Rows rows = as_rows(x);
  call.x = rows.tensor;
  call.work.rows = rows.count;
  call.work.width = rows.width;
  call.work.scale = static_cast<float>(scale);
  call.work.x = call.x.const_data_ptr();
  call.work.x_stride = rows.stride;
  call.work.out = call.out.mutable_data_ptr();
  return call;
}

}  // namespace gossamer
