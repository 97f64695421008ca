#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"
#include "gossamer/math/activation.h"
#include "gossamer/strided.h"

namespace gossamer {

struct Gated {
  DType dtype;
  Activation activation;  // silu, gelu or gelu_tanh
  Strided<2> shape;
  const void* in[2];  // the halves of x: what goes through the activation, and its factor
  void* out;
};

// Outputs begin .. end-1.
GOSSAMER_DECLARE_CPU_KERNEL(void, gated, const Gated& work, int64_t begin, int64_t end)

}  // namespace gossamer
