// The torch functions of fused_residual_rmsnorm and what they share.
// Semantics: gossamer/ops/fused_residual_rmsnorm.py
#pragma once

#include <cmath>
#include <tuple>

#include "gossamer/torch/rows.h"
#include "gossamer/torch/tensor.h"

namespace gossamer {

constexpr int64_t kMaxNormWidth = 65536;

// (normed, new residual)
std::tuple<Tensor, Tensor> fused_residual_rmsnorm_cpu(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                      double eps);
std::tuple<Tensor, Tensor> fused_residual_rmsnorm_cuda(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                       double eps);

// A checked call: inputs as rows (residual and x may have row strides), contiguous outputs.
struct ResidualRmsNormCall {
  DType dtype;
  Rows x, residual;
  Tensor weight, normed, new_residual;
};

inline ResidualRmsNormCall prepare_fused_residual_rmsnorm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                          double eps) {
  const char* op = "fused_residual_rmsnorm";
  const DType dtype = dtype_of(x, op, "x");
  check_matches(residual, x, op, "residual");
  check_matches(weight, x, op, "weight");
  STD_TORCH_CHECK(x.dim() >= 1, op, ": x must have at least 1 dimension");
  const int64_t width = x.size(x.dim() - 1);
  STD_TORCH_CHECK(width >= 1 && width <= kMaxNormWidth, op, ": the last dimension of x is ", width, "; must be 1 to ",
                  kMaxNormWidth);
  STD_TORCH_CHECK(same_sizes(x, residual), op, ": residual must have the shape of x");
  STD_TORCH_CHECK(weight.dim() == 1 && weight.size(0) == width, op, ": weight must have shape [x.shape[-1]]");
  STD_TORCH_CHECK(eps >= 0 && std::isfinite(eps), op, ": eps is ", eps, "; must be finite and >= 0");
  return {dtype,
          as_rows(x),
          as_rows(residual),
          weight.is_contiguous() ? weight : torch::stable::contiguous(weight),
          empty_contiguous(x, x.sizes()),
          empty_contiguous(x, x.sizes())};
}

}  // namespace gossamer
