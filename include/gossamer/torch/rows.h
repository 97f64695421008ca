// A tensor [..., width] seen as equally spaced rows.
#pragma once

#include "gossamer/torch/tensor.h"

namespace gossamer {

struct Rows {
  Tensor tensor;   // keeps the memory alive
  int64_t count;   // rows
  int64_t width;   // elements in a row, side by side
  int64_t stride;  // elements from one row to the next
};

inline bool same_sizes(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim()) return false;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != b.size(d)) return false;
  }
  return true;
}

// `t` as rows without a copy where its strides allow that (a slice of a wider tensor, say), else as a
// contiguous copy. `t` has at least one dimension and a last dimension > 0.
inline Rows as_rows(const Tensor& t) {
  const int64_t last = t.dim() - 1, width = t.size(last);
  Rows rows{t, 1, width, width};
  bool regular = width == 1 || t.stride(last) == 1;
  for (int64_t d = last - 1; d >= 0; --d) {
    if (t.size(d) == 1) continue;
    if (rows.count == 1) {
      rows.stride = t.stride(d);
    } else {
      regular = regular && t.stride(d) == rows.stride * rows.count;
    }
    rows.count *= t.size(d);
  }
  if (!regular && t.numel() > 0) {
    rows.tensor = expanded_copy(t, t.sizes());
    rows.stride = width;
  }
  return rows;
}

}  // namespace gossamer
