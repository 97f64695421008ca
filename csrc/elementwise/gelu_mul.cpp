#include "gelu_mul.h"

#include "gated.h"

namespace gossamer {

Tensor gelu_mul_cpu(const Tensor& x, std::string approximate) {
  STD_TORCH_CHECK(approximate == "none" || approximate == "tanh", "gelu_mul: approximate must be 'none' or 'tanh'");
  return gated_cpu("gelu_mul", x, approximate == "none" ? Activation::gelu : Activation::gelu_tanh);
}

}  // namespace gossamer
