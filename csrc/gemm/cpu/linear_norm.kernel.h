#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

// out = norm(in) * weight + bias for contiguous rows.
struct RowNorm {
  DType dtype;
  bool layer;  // mean 0 as well as variance 1
  int64_t width;
  float eps;
  const void *in, *weight, *bias;  // [rows, width], [width], [width] or null
  void* out;
};

// Rows begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, row_norm, const RowNorm& work, int64_t begin, int64_t end)

}  // namespace gossamer
