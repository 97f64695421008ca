#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

struct QuantizeInt8 {
  DType dtype;
  int64_t width;  // at least 1
  const void* x;
  int64_t x_stride;  // elements from row to row
  int8_t* codes;     // contiguous
  float* scales;     // one for each row
};

// Rows begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, quantize_int8, const QuantizeInt8& work, int64_t begin, int64_t end)

}  // namespace gossamer
