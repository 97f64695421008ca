// What rmsnorm, fused_residual_rmsnorm and fused_residual_layernorm share: the checks, and the call on the CPU.
#pragma once

#include <cmath>
#include <optional>

#include "gossamer/torch/rows.h"
#include "gossamer/torch/tensor.h"
#include "norm.kernel.h"

namespace gossamer {

constexpr int64_t kMaxNormWidth = 65536;

// A checked call; the tensors keep the memory alive that `work` points to. x and residual may have row strides.
struct NormCall {
  Norm work;
  Rows x, residual;
  Tensor weight, bias, input_bias;
  Tensor normed, sum;
};

inline void check_norm(const char* op, const Tensor& x, const std::optional<Tensor>& residual, double eps) {
  STD_TORCH_CHECK(x.dim() >= 1, op, ": x must have at least 1 dimension");
  const int64_t width = x.size(x.dim() - 1);
  STD_TORCH_CHECK(width >= 1 && width <= kMaxNormWidth, op, ": the last dimension of x is ", width, "; must be 1 to ",
                  kMaxNormWidth);
  STD_TORCH_CHECK(eps >= 0 && std::isfinite(eps), op, ": eps is ", eps, "; must be finite and >= 0");
  if (!residual) return;
  check_matches(*residual, x, op, "residual");
  STD_TORCH_CHECK(same_sizes(x, *residual), op, ": residual must have the shape of x");
}

// One row of n elements for all rows of x; `kept` keeps its memory alive.
inline const void* check_norm_row(const char* op, const char* name, const std::optional<Tensor>& t, const Tensor& x,
                                  Tensor& kept) {
  if (!t) return nullptr;
  check_matches(*t, x, op, name);
  STD_TORCH_CHECK(t->dim() == 1 && t->size(0) == x.size(x.dim() - 1), op, ": ", name, " must have shape [x.shape[-1]]");
  kept = t->is_contiguous() ? *t : torch::stable::contiguous(*t);
  return kept.const_data_ptr();
}

inline NormCall prepare_norm(const char* op, bool layer, const Tensor& x, const std::optional<Tensor>& residual,
                             const Tensor& weight, const std::optional<Tensor>& bias, double eps,
                             const std::optional<Tensor>& input_bias) {
  NormCall call{};
  Norm& w = call.work;
  w.dtype = dtype_of(x, op, "x");
  check_norm(op, x, residual, eps);
  w.weight = check_norm_row(op, "weight", weight, x, call.weight);
  w.bias = check_norm_row(op, "bias", bias, x, call.bias);
  w.input_bias = check_norm_row(op, "input_bias", input_bias, x, call.input_bias);
  w.layer = layer;
  w.eps = static_cast<float>(eps);
  call.x = as_rows(x);
  w.rows = call.x.count;
  w.width = call.x.width;
  w.x = call.x.tensor.const_data_ptr();
  w.x_stride = call.x.stride;
  call.normed = empty_contiguous(x, x.sizes());
  w.normed = call.normed.mutable_data_ptr();
  if (residual) {
    call.residual = as_rows(*residual);
    w.residual = call.residual.tensor.const_data_ptr();
    w.residual_stride = call.residual.stride;
    call.sum = empty_contiguous(x, x.sizes());
    w.sum = call.sum.mutable_data_ptr();
  }
  return call;
}

inline void norm_cpu(const Norm& work) {
  const auto kernel = GOSSAMER_CPU_KERNEL(norm);
  const int64_t grain = 16384 / work.width + 1;  // rows; about 10 us of memory traffic
  torch::stable::parallel_for(0, work.rows, grain, [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
}

}  // namespace gossamer
