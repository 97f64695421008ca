#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

struct Rope {
  DType dtype;
  bool interleaved;
  int64_t tokens, heads, head_dim;
  int64_t pairs;  // channels that are turned, by two
  int64_t max_positions;
  const void* x;
  int64_t token_stride, head_stride, channel_stride;  // elements; the CPU kernel wants channels side by side
  const int64_t* positions;
  int64_t position_stride;
  const float *cos, *sin;  // [max_positions, pairs]
  void* out;               // contiguous
};

// Rows begin .. end-1 of tokens * heads; positions are in range.
GOSSAMER_DECLARE_CPU_KERNEL(void, rope, const Rope& work, int64_t begin, int64_t end)

}  // namespace gossamer
