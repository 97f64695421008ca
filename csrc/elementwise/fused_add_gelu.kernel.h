#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"
#include "gossamer/strided.h"

namespace gossamer {

struct AddGelu {
  DType dtype;
  bool tanh;
  Strided<2> shape;
  const void* in[2];  // x, bias
  void* out;
};

// Outputs begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, fused_add_gelu, const AddGelu& work, int64_t begin, int64_t end)

}  // namespace gossamer
