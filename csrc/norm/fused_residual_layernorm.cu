#include "fused_residual_layernorm.h"
#include "norm.cuh"

namespace gossamer {

std::tuple<Tensor, Tensor> fused_residual_layernorm_cuda(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                         std::optional<Tensor> bias, double eps,
                                                         std::optional<Tensor> input_bias) {
  const NormCall call = prepare_norm("fused_residual_layernorm", true, x, residual, weight, bias, eps, input_bias);
  norm_cuda<NormForm::residual_layer>("fused_residual_layernorm", call);
  return {call.normed, call.sum};
}

}  // namespace gossamer
