#include "gemm/linear_act.h"

#include "gemm/cpu/run.h"

namespace gossamer {

Tensor linear_act_cpu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                      std::string activation) {
  check_linear_act(x, weight, bias);
  Epilogue epilogue;
  epilogue.activation = parse_activation("linear_act", activation);
  return linear_with_epilogue(x, weight, bias, epilogue);
}

}  // namespace gossamer
