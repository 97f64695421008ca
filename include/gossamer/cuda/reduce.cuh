// Sums and maxima over the threads of a block that share a row.
#pragma once

#include "gossamer/common.h"

namespace gossamer::cuda {

struct Sum {
  static constexpr float none = 0.0f;
  GOSSAMER_INLINE float of(float a, float b) { return a + b; }
};
struct Max {  // of those that are numbers
  static constexpr float none = -INFINITY;
  GOSSAMER_INLINE float of(float a, float b) { return fmaxf(a, b); }
};

// Over `lanes` neighbours in a warp, a power of two; each of them gets it.
template <class Op>
GOSSAMER_INLINE float lanes_reduce(float x, int lanes) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, x, distance);
    if (distance < lanes) x = Op::of(x, other);
  }
  return x;
}

// Over the blockDim.x threads of one row (a power of two, or a multiple of 32); every thread of the row gets it. All
// threads of the block call it. `scratch` holds one float per warp of the block and may be reused
// after another __syncthreads().
template <class Op>
GOSSAMER_INLINE float row_reduce(float x, float* scratch) {
  x = lanes_reduce<Op>(x, blockDim.x);
  if (blockDim.x <= 32) return x;
  const int warps = blockDim.x / 32;
  float* mine = scratch + threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  return lanes_reduce<Op>(lane < warps ? mine[lane] : Op::none, 32);
}

GOSSAMER_INLINE float row_sum(float x, float* scratch) { return row_reduce<Sum>(x, scratch); }
GOSSAMER_INLINE float row_max(float x, float* scratch) { return row_reduce<Max>(x, scratch); }

}  // namespace gossamer::cuda
