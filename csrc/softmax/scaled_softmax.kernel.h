#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

struct ScaledSoftmax {
  DType dtype;
  int64_t rows, width;
  float scale;
  const void* x;
  int64_t x_stride;  // elements from row to row
  void* out;         // contiguous
};

// Rows begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, scaled_softmax, const ScaledSoftmax& work, int64_t begin, int64_t end)

}  // namespace gossamer
