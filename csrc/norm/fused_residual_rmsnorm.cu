#include "fused_residual_rmsnorm.h"
#include "norm.cuh"

namespace gossamer {

std::tuple<Tensor, Tensor> fused_residual_rmsnorm_cuda(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                       double eps) {
  const NormCall call = prepare_norm("fused_residual_rmsnorm", false, x, residual, weight, {}, eps, {});
  norm_cuda<NormForm::residual_rms>("fused_residual_rmsnorm", call);
  return {call.normed, call.sum};
}

}  // namespace gossamer
