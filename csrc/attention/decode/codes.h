// Decode attention over dense codes on a GPU: the kernels of codes_kernel.cuh, one file per head dimension.
#pragma once

#include "attention/decode/call.h"

namespace gossamer {

// Whether there is a kernel for this head dimension.
constexpr bool has_codes_kernel(int head_dim) {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}
// K and V are dense codes, queries float16 or bfloat16, and so is the window.
void launch_codes(const DecodeCall& call);

template <int D>
void launch_codes(const DecodeCall& call);

}  // namespace gossamer
