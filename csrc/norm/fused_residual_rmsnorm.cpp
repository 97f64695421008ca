#include "fused_residual_rmsnorm.h"

#include "norm.h"

namespace gossamer {

std::tuple<Tensor, Tensor> fused_residual_rmsnorm_cpu(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                      double eps) {
  const NormCall call = prepare_norm("fused_residual_rmsnorm", false, x, residual, weight, {}, eps, {});
  norm_cpu(call.work);
  return {call.normed, call.sum};
}

}  // namespace gossamer
