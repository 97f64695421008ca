#include "fused_residual_rmsnorm.h"

#include "fused_residual_rmsnorm.kernel.h"

namespace gossamer {

std::tuple<Tensor, Tensor> fused_residual_rmsnorm_cpu(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                      double eps) {
  const ResidualRmsNormCall call = prepare_fused_residual_rmsnorm(x, residual, weight, eps);
  const ResidualRmsNorm work{call.dtype,
                             call.x.width,
                             static_cast<float>(eps),
                             call.x.tensor.const_data_ptr(),
                             call.x.stride,
                             call.residual.tensor.const_data_ptr(),
                             call.residual.stride,
                             call.weight.const_data_ptr(),
                             call.normed.mutable_data_ptr(),
                             call.new_residual.mutable_data_ptr()};
  const auto kernel = GOSSAMER_CPU_KERNEL(fused_residual_rmsnorm);
  const int64_t grain = 16384 / call.x.width + 1;  // rows; about 10 us of memory traffic
  torch::stable::parallel_for(0, call.x.count, grain, [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return {call.normed, call.new_residual};
}

}  // namespace gossamer
