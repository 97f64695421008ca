// torch's linear, which calls cuBLAS.
#pragma once

#include <array>
#include <optional>

#include "gossamer/torch/tensor.h"

namespace gossamer {

// x weight^T + bias for x [..., k].
inline Tensor torch_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(x), from(weight), from(bias)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace gossamer
