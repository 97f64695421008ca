#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

struct RopeRows {
  DType dtype;
  bool interleaved;
  int64_t tokens, heads, head_dim;
  int64_t pairs;  // channels that are turned, by two
  int64_t max_positions;
  const void* x;
  int64_t token_stride, head_stride, channel_stride;  // elements
  const int64_t* positions;
  int64_t position_stride;
  const float *cos, *sin;  // [max_positions, pairs]
  void* out;               // contiguous, or x
  int64_t out_token_stride, out_head_stride;
  bool in_place;       // out is x: channels that are not turned stay as they are
  const void* weight;  // null, or what x is multiplied with after an RMSNorm of each row, before it is turned
  int64_t weight_head_stride;
  float eps;
};

// Rows begin .. end-1 of tokens * heads; positions are in range, channels of x and out side by side.
GOSSAMER_DECLARE_CPU_KERNEL(void, rope, const RopeRows& work, int64_t begin, int64_t end)

}  // namespace gossamer
