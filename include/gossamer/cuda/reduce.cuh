// Sums over the threads of a block that share a row.
#pragma once

#include "gossamer/common.h"

namespace gossamer::cuda {

// Sum over a warp; every lane gets it.
GOSSAMER_INLINE float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

// Sum over the blockDim.x threads of one row (a multiple of 32); every thread of the row gets it. All
// threads of the block call it. `scratch` holds one float per warp of the block and may be reused
// after another __syncthreads().
GOSSAMER_INLINE float row_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int warps = blockDim.x / 32;
  if (warps == 1) return x;
  float* mine = scratch + threadIdx.y * warps;
  if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  return warp_sum(lane < warps ? mine[lane] : 0.0f);
}

}  // namespace gossamer::cuda
