#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"
#include "gossamer/strided.h"

namespace gossamer {

struct SiluMul {
  DType dtype;
  Strided<2> shape;
  const void* in[2];  // the halves of x: what goes through silu, and its factor
  void* out;
};

// Outputs begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, silu_mul, const SiluMul& work, int64_t begin, int64_t end)

}  // namespace gossamer
