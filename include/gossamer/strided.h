// The shape of an elementwise loop over N inputs and one contiguous output.
#pragma once

#include <cstdint>

namespace gossamer {

constexpr int kMaxDims = 8;  // after merging; tensors that need more are copied first

// Dimension 0 is the innermost. Element i of the output is at offset i; strides are in elements and
// may be 0 (broadcast) or anything else (views).
template <int N>
struct Strided {
  int dims = 0;
  int64_t numel = 0;
  int64_t size[kMaxDims] = {};
  int64_t stride[N][kMaxDims] = {};

  // Largest element offset of input n; bounds checks in debug builds use it.
  int64_t last_offset(int n) const {
    int64_t last = 0;
    for (int d = 0; d < dims; ++d) last += (size[d] - 1) * stride[n][d];
    return last;
  }
};

}  // namespace gossamer
