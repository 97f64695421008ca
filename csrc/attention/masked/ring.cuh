// The tiles of an item on their way through a ring of stages in shared memory.
//
// On sm_90 one lane asks TMA for whole tiles, barriers in shared memory tell when they are there and when
// all warps are done with them, and warps wait for each other only where the ring is full. Before that, all threads
// copy pieces of 16 bytes, with a barrier of the whole CTA for each tile.
#pragma once

#include <cuda.h>

#include "attention/masked/tile.cuh"
#include "attention/masked/work.cuh"

namespace gossamer::cuda {

// Of q, k and v as [batch, head, token, 64 channels]; unused before sm_90.
struct TensorMaps {
  CUtensorMap q, k, v;
};

#if __CUDA_ARCH__ >= 900

GOSSAMER_INLINE void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
GOSSAMER_INLINE void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
GOSSAMER_INLINE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
GOSSAMER_INLINE void barrier_wait(uint32_t barrier, int phase) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra again;\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}
GOSSAMER_INLINE void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}
GOSSAMER_INLINE void copy_box(uint32_t to, const CUtensorMap& map, int channel, int token, int head, int batch,
                              uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(channel), "r"(token), "r"(head), "r"(batch), "r"(barrier)
      : "memory");
}

// Of thread 0, before anything is known of the item.
template <class Traits>
GOSSAMER_INLINE void prepare_ring(const TensorMaps& maps, uint32_t shared) {
  if (threadIdx.x == 0) {
    prefetch_map(maps.q), prefetch_map(maps.k), prefetch_map(maps.v);
    const uint32_t barriers = shared + Traits::kBarriers;
#pragma unroll
    for (int i = 0; i <= Traits::kStages; ++i) barrier_init(barriers + 8 * i, 1);
#pragma unroll
    for (int i = 1; i <= Traits::kStages; ++i) barrier_init(barriers + 8 * (Traits::kStages + i), Traits::kWarps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
}

template <class Traits>
struct Ring {
  static constexpr int kStages = Traits::kStages;
  const MaskedWork& w;
  const TensorMaps& maps;
  const uint32_t shared;
  const WorkItem& item;
  const int count;
  const int batch, kv_head;
  TileNumbers columns;
  int phase = 0, stage = 0;  // of the tile that is waited for

  __device__ __forceinline__ uint32_t full(int i) const { return shared + Traits::kBarriers + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return full(kStages + 1 + i); }

  // Asks for the queries and the first tiles. One thread does: several warps, each with some tiles, are slower.
  __device__ __forceinline__ Ring(const MaskedWork& w, const TensorMaps& maps, uint32_t shared,
                                  const MaskedPlace& place, const WorkItem& item, const TileNumbers& columns)
      : w(w),
        maps(maps),
        shared(shared),
        item(item),
        count(item.end - item.begin),
        batch(place.batch),
        kv_head(w.by_group.divide(place.head)),
        columns(columns) {
    static_assert(kStages <= kKnownTiles);
    if (threadIdx.x >= 32) return;
    if (threadIdx.x == 0) {
      barrier_expect(full(kStages), Traits::kQueryBytes);
#pragma unroll
      for (int c = 0; c < Traits::D; c += 64) {
        copy_box(shared + c * Traits::TileQ * 2, maps.q, c, place.query, w.q.head_at(place.head), w.q.batch_at(batch),
                 full(kStages));
      }
    }
#pragma unroll 1
    for (int i = 0; i < min(kStages, count); ++i) {
      const int column = columns.first(i);
      if (threadIdx.x == 0) fetch(i, column);
    }
    this->columns.complete(w.columns, item);
  }
  // Of one thread.
  __device__ __forceinline__ void fetch(int to, int column) const {
    const uint32_t keys = shared + Traits::kQueryBytes + to * Traits::kStageBytes;
    barrier_expect(full(to), Traits::kStageBytes);
#pragma unroll
    for (int c = 0; c < Traits::D; c += 64) {
      copy_box(keys + c * Traits::TileK * 2, maps.k, c, column * Traits::TileK, w.k.head_at(kv_head),
               w.k.batch_at(batch), full(to));
    }
#pragma unroll
    for (int c = 0; c < Traits::D; c += 64) {
      copy_box(keys + Traits::kTileBytes + c * Traits::TileK * 2, maps.v, c, column * Traits::TileK,
               w.v.head_at(kv_head), w.v.batch_at(batch), full(to));
    }
  }
  __device__ __forceinline__ void wait_queries() const { barrier_wait(full(kStages), 0); }

  // Waits for tile i, and asks for the one that takes the place of tile i - 1. Returns the offset of its stage.
  __device__ __forceinline__ uint32_t wait(int i) {
    if (threadIdx.x < 32 && i > 0 && i - 1 + kStages < count) {
      const int before = stage == 0 ? kStages - 1 : stage - 1;
      const int column = columns.at(w.columns, item, i - 1 + kStages);
      if (threadIdx.x == 0) {
        barrier_wait(empty(before), stage == 0 ? phase ^ 1 : phase);
        fetch(before, column);
      }
      __syncwarp();
    }
    barrier_wait(full(stage), phase);
    return stage * Traits::kStageBytes;
  }
  __device__ __forceinline__ void release(int i) {
    if (i + kStages < count) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(empty(stage));
    }
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

#else

// 16 bytes in the background, zeros if `there` is false.
GOSSAMER_INLINE void copy16(uint32_t to, const char* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
GOSSAMER_INLINE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `Pending` groups of this thread's copies are under way.
template <int Pending>
GOSSAMER_INLINE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

template <class Traits>
GOSSAMER_INLINE void prepare_ring(const TensorMaps&, uint32_t) {}

template <class Traits>
struct Ring {
  static constexpr int kStages = Traits::kStages;
  const MaskedWork& w;
  const uint32_t shared;
  const WorkItem& item;
  const int count;
  const char *keys, *values;
  TileNumbers columns;

  __device__ __forceinline__ Ring(const MaskedWork& w, const TensorMaps&, uint32_t shared, const MaskedPlace& place,
                                  const WorkItem& item, const TileNumbers& columns)
      : w(w), shared(shared), item(item), count(item.end - item.begin), columns(columns) {
    const int kv_head = w.by_group.divide(place.head);
    keys = w.k.at(place.batch, kv_head);
    values = w.v.at(place.batch, kv_head);
    copy<Traits::TileQ>(shared, w.q.at(place.batch, place.head), w.q.token_stride, place.query, w.q_len);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i, columns.first(i));
    this->columns.complete(w.columns, item);
  }
  // Rows that lie beyond the tensor become zeros.
  template <int Rows>
  __device__ __forceinline__ static void copy(uint32_t to, const char* from, int64_t stride, int first, int limit) {
    using Shape = Tile<Traits::D, Rows>;
#pragma unroll
    for (int i = threadIdx.x; i < Rows * Shape::kChunks; i += Traits::kThreads) {
      const int row = i / Shape::kChunks, chunk = i % Shape::kChunks;
      const bool there = first + row < limit;
      copy16(to + Shape::at(row, chunk), from + (there ? first + row : 0) * stride + chunk * 16, there);
    }
  }
  __device__ __forceinline__ void fetch(int i, int column) const {
    if (i < count) {
      const uint32_t to = shared + Traits::kQueryBytes + i % kStages * Traits::kStageBytes;
      copy<Traits::TileK>(to, keys, w.k.token_stride, column * Traits::TileK, w.kv_len);
      copy<Traits::TileK>(to + Traits::kTileBytes, values, w.v.token_stride, column * Traits::TileK, w.kv_len);
    }
    commit_copies();
  }
  __device__ __forceinline__ void wait_queries() const {
    wait_copies<kStages - 2>();
    __syncthreads();
  }
  __device__ __forceinline__ uint32_t wait(int i) {
    if (i > 0) {
      wait_copies<kStages - 2>();
      __syncthreads();
    }
    fetch(i + kStages - 1, columns.at(w.columns, item, i + kStages - 1));
    return i % kStages * Traits::kStageBytes;
  }
  __device__ __forceinline__ void release(int) const {}
};

#endif

}  // namespace gossamer::cuda
