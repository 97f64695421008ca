#include "gemm/mlp.h"

#include "gemm/cpu/run.h"

namespace gossamer {
namespace {

// Rows begin .. begin + count - 1.
Tensor part(const Tensor& t, int64_t begin, int64_t count) {
  Tensor whole = t;
  return torch::stable::narrow(whole, 0, begin, count);
}
std::optional<Tensor> part(const std::optional<Tensor>& t, int64_t begin, int64_t count) {
  if (!t) return std::nullopt;
  return part(*t, begin, count);
}

}  // namespace

Tensor gemm_chain_cpu(const Tensor& x, const Tensor& w1, const Tensor& w2, const std::optional<Tensor>& b1,
                      const std::optional<Tensor>& b2, std::string activation) {
  check_gemm_chain(x, w1, w2, b1, b2);
  Epilogue epilogue;
  epilogue.activation = parse_activation("gemm_chain", activation);
  return linear_with_epilogue(linear_with_epilogue(x, w1, b1, epilogue), w2, b2, {});
}

Tensor gated_mlp_cpu(const Tensor& x, const Tensor& gate_up, const Tensor& down,
                     const std::optional<Tensor>& gate_up_bias, const std::optional<Tensor>& down_bias,
                     std::string activation) {
  check_gated_mlp(x, gate_up, down, gate_up_bias, down_bias, activation);
  const int64_t hidden = gate_up.size(0) / 2;
  Epilogue epilogue;
  epilogue.activation = parse_activation("gated_mlp", activation);
  // `up` first, so that what goes through the activation is multiplied before it is rounded.
  epilogue.factor = linear_with_epilogue(x, part(gate_up, hidden, hidden), part(gate_up_bias, hidden, hidden), {});
  const Tensor h = linear_with_epilogue(x, part(gate_up, 0, hidden), part(gate_up_bias, 0, hidden), epilogue);
  return linear_with_epilogue(h, down, down_bias, {});
}

}  // namespace gossamer
