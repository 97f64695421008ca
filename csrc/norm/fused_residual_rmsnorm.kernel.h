#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

struct ResidualRmsNorm {
  DType dtype;
  int64_t width;
  float eps;
  const void* x;
  int64_t x_stride;  // elements from row to row
  const void* residual;
  int64_t residual_stride;
  const void* weight;
  void* normed;        // contiguous
  void* new_residual;  // contiguous
};

// Rows begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, fused_residual_rmsnorm, const ResidualRmsNorm& work, int64_t begin, int64_t end)

}  // namespace gossamer
