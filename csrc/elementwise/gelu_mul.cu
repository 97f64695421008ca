#include "gated.cuh"
#include "gelu_mul.h"

namespace gossamer {

Tensor gelu_mul_cuda(const Tensor& x, std::string approximate) {
  STD_TORCH_CHECK(approximate == "none" || approximate == "tanh", "gelu_mul: approximate must be 'none' or 'tanh'");
  if (approximate == "none") return gated_cuda<Activation::gelu>("gelu_mul", x);
  return gated_cuda<Activation::gelu_tanh>("gelu_mul", x);
}

}  // namespace gossamer
