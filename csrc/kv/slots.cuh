// Where the rows of a warp go.
#pragma once

#include "gossamer/common.h"
#include "kv/kv_format.h"

namespace gossamer::cuda {

// The slot of a row; -1 where it is out of range, which skips the row.
GOSSAMER_INLINE int64_t slot_of(const KvPack& w, int64_t row) {
  if (row >= w.rows) return -1;
  int64_t slot = w.slots[row];
  if (w.table != nullptr) {
    if (slot < 0 || slot >= w.table_width * kBlockTokens) return -1;
    const int64_t block = w.table[row * w.table_stride + slot / kBlockTokens];
    slot = block < 0 ? -1 : block * kBlockTokens + slot % kBlockTokens;
  }
  return slot < 0 || slot >= w.num_blocks * kBlockTokens ? -1 : slot;
}

// Whether the slots of the warp's rows are those of a block, in order.
GOSSAMER_INLINE bool whole_block(int64_t slot) {
  const int64_t start = __shfl_sync(~0u, slot, 0);
  return start >= 0 && start % kBlockTokens == 0 && __all_sync(~0u, slot == start + threadIdx.x);
}

}  // namespace gossamer::cuda
