#pragma once

#include "kv/kv_format.h"
#include "rope/rope.kernel.h"

namespace gossamer {

// Dense blocks of K or V, of rows in their own type.
struct DenseBlocks {
  uint8_t* data;
  int64_t block_stride, head_stride;  // bytes
};

struct RopeAppend {
  RopeRows rows;  // the heads of q and k; V's follow them in memory. `out` is not used
  int64_t queries, kv_heads;
  const void *matrices, *offsets;  // [heads of q and k, head_dim, head_dim] and [.., head_dim], contiguous, or null
  void* q;                         // contiguous [tokens, queries, head_dim]
  DenseBlocks k, v;
  const int64_t* slots;
};

// Rows begin .. end-1 of tokens * (queries + 2 kv_heads); positions and slots are in range.
GOSSAMER_DECLARE_CPU_KERNEL(void, rope_append, const RopeAppend& work, int64_t begin, int64_t end)

}  // namespace gossamer
