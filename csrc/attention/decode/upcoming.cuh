// The blocks of the main pool that a warp will fetch next.
#pragma once

#include "attention/decode/schedule.cuh"

namespace gossamer::cuda {

// Where 32 blocks are, one per lane, in units of kOffsetUnit from the start of their pools.
struct UpcomingBlocks {
  uint32_t k_offset = 0, v_offset = 0;

  // Blocks block, block + step, ... below `end`; `missing` if the table names one of this lane that is not there.
  __device__ __forceinline__ void look_up(const DecodeParams& w, const Cut& cut, int sequence, int head, int block,
                                          int step, int end, bool& missing) {
    const int mine = block + threadIdx.x % 32 * step;
    if (mine < end) {
      const DecodePool& pool = w.main;
      const int page = pool.table[sequence * pool.table_stride + cut.by_page(mine)];
      int64_t number = static_cast<int64_t>(page) * w.page_blocks + cut.by_page.modulo(mine);
      if (page < 0 || number >= pool.num_blocks) {
        missing = true;
        number = 0;
      }
      k_offset = static_cast<uint32_t>((number * pool.k_block_stride + head * pool.k_head_stride) / kOffsetUnit);
      v_offset = static_cast<uint32_t>((number * pool.v_block_stride + head * pool.v_head_stride) / kOffsetUnit);
    }
    __syncwarp();
  }
  // The block that lane `at` knows of.
  __device__ __forceinline__ const uint8_t* k(const DecodeParams& w, int at) const {
    return w.main.k_blocks + static_cast<uint64_t>(__shfl_sync(~0u, k_offset, at)) * kOffsetUnit;
  }
  __device__ __forceinline__ const uint8_t* v(const DecodeParams& w, int at) const {
    return w.main.v_blocks + static_cast<uint64_t>(__shfl_sync(~0u, v_offset, at)) * kOffsetUnit;
  }
};

}  // namespace gossamer::cuda
