#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

// RMSNorm or LayerNorm of rows: of x, or of the sum of x, input_bias and residual, which is then stored.
struct Norm {
  DType dtype;
  bool layer;
  int64_t rows, width;
  float eps;
  const void* x;
  int64_t x_stride;      // elements from row to row
  const void* residual;  // null for none
  int64_t residual_stride;
  const void* input_bias;  // one row, or null; only with a residual
  const void* weight;      // one row
  const void* bias;        // one row, or null; only for LayerNorm
  void* normed;            // contiguous
  void* sum;               // contiguous; null without a residual
};

// Rows begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, norm, const Norm& work, int64_t begin, int64_t end)

}  // namespace gossamer
