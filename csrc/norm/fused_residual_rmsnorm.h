// The torch functions of fused_residual_rmsnorm. Semantics: gossamer/ops/fused_residual_rmsnorm.py
#pragma once

#include <tuple>

#include "gossamer/torch/tensor.h"

namespace gossamer {

// (normed, new residual)
std::tuple<Tensor, Tensor> fused_residual_rmsnorm_cpu(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                      double eps);
std::tuple<Tensor, Tensor> fused_residual_rmsnorm_cuda(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                       double eps);

}  // namespace gossamer
