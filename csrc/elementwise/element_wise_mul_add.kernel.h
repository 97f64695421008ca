#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"
#include "gossamer/strided.h"

namespace gossamer {

struct MulAdd {
  DType dtype;
  Strided<3> shape;
  const void* in[3];  // a, b, c
  void* out;
};

// Outputs begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, element_wise_mul_add, const MulAdd& work, int64_t begin, int64_t end)

}  // namespace gossamer
