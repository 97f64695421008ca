// The channels of a row's stored entries, one after the other.
#pragma once

#include "gossamer/common.h"

namespace gossamer::cuda {

// Of a sparse row, from its bitmap. Ask for no more channels than it has bits.
template <int Words>
struct Cursor {
  uint32_t words[Words];
  int base = 0;

  __device__ __forceinline__ explicit Cursor(const uint32_t (&selected)[Words]) {
#pragma unroll
    for (int g = 0; g < Words; ++g) words[g] = __brev(selected[g]);  // counting zeros is cheaper from the top
  }
  __device__ __forceinline__ int next() {
    while (words[0] == 0) {
#pragma unroll
      for (int g = 0; g + 1 < Words; ++g) words[g] = words[g + 1];
      base += 32;
    }
    const int zeros = __clz(words[0]);
    words[0] ^= 0x80000000u >> zeros;
    return base + zeros;
  }
};

// Of a dense row.
struct Counter {
  int c = 0;
  __device__ __forceinline__ int next() { return c++; }
};

}  // namespace gossamer::cuda
