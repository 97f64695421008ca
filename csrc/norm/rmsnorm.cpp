#include "rmsnorm.h"

#include "norm.h"

namespace gossamer {

Tensor rmsnorm_cpu(const Tensor& x, const Tensor& weight, double eps) {
  const NormCall call = prepare_norm("rmsnorm", false, x, {}, weight, {}, eps, {});
  norm_cpu(call.work);
  return call.normed;
}

}  // namespace gossamer
