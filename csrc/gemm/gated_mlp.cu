#include "gemm/forward.h"
#include "gemm/mlp.h"
#include "gemm/skinny/launch.cuh"

namespace gossamer {

Tensor gated_mlp_cuda(const Tensor& x, const Tensor& gate_up, const Tensor& down,
                      const std::optional<Tensor>& gate_up_bias, const std::optional<Tensor>& down_bias,
                      std::string activation) {
  const char* op = "gated_mlp";
  check_gated_mlp(x, gate_up, down, gate_up_bias, down_bias, activation);
  const Activation between = parse_activation(op, activation);
  const cuda::DeviceGuard guard(x.get_device_index());
  const int64_t rows = x.numel() / gate_up.size(1);
  if (!skinny_takes(rows, gate_up, true) || !skinny_takes(rows, down)) {
    return call_triton("gossamer::gated_mlp", x, gate_up, down, gate_up_bias, down_bias, activation);
  }
  return skinny_gemms(op, x, {gate_up, gate_up_bias, between, true}, {down, down_bias});
}

}  // namespace gossamer
