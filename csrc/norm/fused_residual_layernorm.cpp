#include "fused_residual_layernorm.h"

#include "norm.h"

namespace gossamer {

std::tuple<Tensor, Tensor> fused_residual_layernorm_cpu(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                        std::optional<Tensor> bias, double eps,
                                                        std::optional<Tensor> input_bias) {
  const NormCall call = prepare_norm("fused_residual_layernorm", true, x, residual, weight, bias, eps, input_bias);
  norm_cpu(call.work);
  return {call.normed, call.sum};
}

}  // namespace gossamer
