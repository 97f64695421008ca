#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"
#include "gossamer/math/activation.h"
#include "gossamer/strided.h"

namespace gossamer {

struct BiasAct {
  DType dtype;
  Activation activation;
  bool has_bias;
  Strided<2> shape;
  const void* in[2];  // x, bias
  void* out;
};

// Outputs begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, bias_act, const BiasAct& work, int64_t begin, int64_t end)

}  // namespace gossamer
