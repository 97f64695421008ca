#include "norm.cuh"
#include "rmsnorm.h"

namespace gossamer {

Tensor rmsnorm_cuda(const Tensor& x, const Tensor& weight, double eps) {
  const NormCall call = prepare_norm("rmsnorm", false, x, {}, weight, {}, eps, {});
  norm_cuda<NormForm::rms>("rmsnorm", call);
  return call.normed;
}

}  // namespace gossamer
