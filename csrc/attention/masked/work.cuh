// What a launch of the masked attention kernel works on, and which part of it a CTA does.
#pragma once

#include <cuda_runtime.h>

#include "gossamer/common.h"
#include "gossamer/cuda/divider.cuh"

namespace gossamer::cuda {

// A tensor [batch, heads, tokens, head_dim]; strides in bytes, all but that of the last dimension multiples of 16.
struct MaskedInput {
  const char* data;
  int64_t batch_stride, head_stride, token_stride;

  __device__ __forceinline__ const char* at(int batch, int head) const {
    return data + batch * batch_stride + head * head_stride;
  }
  // Coordinates in a tensor map, which has no strides of 0.
  __device__ __forceinline__ int batch_at(int batch) const { return batch_stride == 0 ? 0 : batch; }
  __device__ __forceinline__ int head_at(int head) const { return head_stride == 0 ? 0 : head; }
};

// Tiles [begin, end) of a row of tiles, the work of a CTA: the first words of a line of `work` in
// gossamer/masks/work.py.
struct WorkItem {
  int row, begin, end, slot;  // slot: of its partial results, -1 for the only item of a row
};
// Of an item's row.
struct WorkSlots {
  int first_slot, slots;
};
constexpr int kKnownTiles = 4;  // whose numbers lie in the item itself
struct alignas(16) WorkLine {
  WorkItem item;
  WorkSlots slots;
  int unused[2];
  int columns[kKnownTiles], kinds[kKnownTiles];
};

// What a CTA needs first comes first: none of it is in a cache when a call starts.
struct MaskedWork {
  Divider by_replicas, by_replica_heads, by_rows, by_map_heads, by_group;
  // Batches and heads that share the map's rows are its replicas.
  int items, replicas, replica_heads, rows, map_heads;
  bool map_has_batch, map_has_heads;
  bool bent;                                            // scores: see `before`
  const WorkLine* work;                                 // null: whole rows, by `order`
  const int *offsets, *columns, *kinds, *bits, *order;  // the map
  int q_len, kv_len, heads;
  // A score is after * x, where x = q k; where `bent`, after * cap * tanh(before * x), or without a cap after * before
  // * x. Scores are logarithms to base 2.
  float before, cap, after;
  MaskedInput q, k, v;
  void* out;           // [batch, heads, q_len, head_dim]
  float* lse;          // [batch, heads, q_len]; null: not wanted
  int slots;           // of a replica
  float* partials;     // [replicas, slots] PartialTile
  uint64_t* arrivals;  // [replicas, slots]; see Arrivals
  uint64_t ticket;     // of this launch
};

// Where a CTA's item lies.
struct MaskedPlace {
  int replica, batch, head, query;  // query: the first one

  // CTAs go through the replicas of an item before the next item, so that the longest ones all start first. A tile of
  // K and V that the next item needs as well is in the L2 cache until then.
  __device__ __forceinline__ MaskedPlace(const MaskedWork& w, int replica, int row, int tile_q) : replica(replica) {
    const int group = w.by_rows.divide(row), map_batch = w.by_map_heads.divide(group);
    const int replica_batch = w.by_replica_heads.divide(replica);
    query = (row - group * w.rows) * tile_q;
    batch = w.map_has_batch ? map_batch : replica_batch;
    head = w.map_has_heads ? group - map_batch * w.map_heads : replica - replica_batch * w.replica_heads;
  }
};

GOSSAMER_INLINE WorkItem work_item(const MaskedWork& w, int number) {
  if (w.work != nullptr) {
    const int4 x = __ldg(reinterpret_cast<const int4*>(w.work + number));
    return {x.x, x.y, x.z, x.w};
  }
  const int row = __ldg(w.order + number);
  return {row, __ldg(w.offsets + row), __ldg(w.offsets + row + 1), -1};
}

GOSSAMER_INLINE WorkSlots work_slots(const MaskedWork& w, int number) {
  const int2 x = __ldg(reinterpret_cast<const int2*>(&w.work[number].slots));
  return {x.x, x.y};
}

// A number of each tile of an item (column or kind), one in each lane, 32 at a time. Those of the first tiles come with
// the item, so that copies of short rows wait for one read and not for two.
class TileNumbers {
 public:
  // Of an item in `work`: `known` are its first ones.
  __device__ __forceinline__ explicit TileNumbers(const int* known) : mine_(__ldg(known + threadIdx.x % kKnownTiles)) {}
  // Of any.
  __device__ __forceinline__ TileNumbers(const int* list, const WorkItem& item) { load(list, item, 0); }

  // Of the first tiles.
  __device__ __forceinline__ int first(int i) const { return __shfl_sync(~0u, mine_, i); }
  // After the first ones, before `at`.
  __device__ __forceinline__ void complete(const int* list, const WorkItem& item) {
    if (item.end - item.begin > kKnownTiles) load(list, item, 0);
  }
  // In ascending order of i.
  __device__ __forceinline__ int at(const int* list, const WorkItem& item, int i) {
    if (i % 32 == 0 && i > 0) load(list, item, i);
    return __shfl_sync(~0u, mine_, i % 32);
  }

 private:
  int mine_;

  __device__ __forceinline__ void load(const int* list, const WorkItem& item, int first) {
    const int i = item.begin + first + static_cast<int>(threadIdx.x % 32);
    mine_ = i < item.end ? __ldg(list + i) : 0;
  }
};

}  // namespace gossamer::cuda
