// Calls that a CUDA kernel does not take go on to the op's Triton overload, which takes all.
#pragma once

#include <array>

#include "gossamer/torch/tensor.h"

namespace gossamer {

// `name`: of the op, "gossamer::x". The arguments are the op's, all of them.
template <class... Args>
Tensor call_triton(const char* name, const Args&... args) {
  std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "triton", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace gossamer
