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

// Tiles [begin, end) of a row of tiles, the work of a CTA: a line of `work` in gossamer/masks/work.py.
struct WorkItem {
  int row, begin, end, slot;            // slot: of its partial results, -1 for the only item of a row
  int first_slot, slots, column, kind;  // of its row; of its first tile
};

struct MaskedWork {
  MaskedInput q, k, v;
  const int *offsets, *columns, *kinds, *bits, *order;  // the map
  const WorkItem* work;                                 // null: whole rows, by `order`
  void* out;                                            // [batch, heads, q_len, head_dim]
  float* lse;                                           // [batch, heads, q_len]
  int q_len, kv_len, heads;
  int list_bytes, bits_bytes;  // of columns and of kinds, of bits: what is worth a prefetch
  // A score is after * x of a product x; where `bent`, after * cap * tanh(before * x), or without a cap after * before
  // * x. Scores are logarithms to base 2.
  float before, cap, after;
  bool bent;
  // Batches and heads that share the map's rows are its replicas.
  bool map_has_batch, map_has_heads;
  int items, replicas, replica_heads, rows, map_heads;
  Divider by_replicas, by_replica_heads, by_rows, by_map_heads, by_group;
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

// The lists of the map on their way to the L2 cache while items are being read; long ones are not worth it.
GOSSAMER_INLINE void prefetch_lists(const MaskedWork& w) {
  const int at = (blockIdx.x * blockDim.x + threadIdx.x) * 128;
  const auto prefetch = [&](const int* list, int bytes) {
    if (at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(list) + at));
  };
  prefetch(w.columns, w.list_bytes);
  prefetch(w.kinds, w.list_bytes);
  prefetch(w.bits, w.bits_bytes);
}

GOSSAMER_INLINE WorkItem work_item(const MaskedWork& w, int number) {
  if (w.work != nullptr) {
    const int4* line = reinterpret_cast<const int4*>(w.work + number);
    const int4 a = __ldg(line), b = __ldg(line + 1);
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  }
  const int row = __ldg(w.order + number), begin = __ldg(w.offsets + row), end = __ldg(w.offsets + row + 1);
  const bool any = begin < end;
  return {row, begin, end, -1, 0, 1, any ? __ldg(w.columns + begin) : 0, any ? __ldg(w.kinds + begin) : -1};
}

}  // namespace gossamer::cuda
