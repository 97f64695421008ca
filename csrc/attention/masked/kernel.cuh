// Attention of one CTA: a row of tiles, or a part of one, 16 queries to a warp.
#pragma once

#include "attention/masked/merge.cuh"
#include "attention/masked/ring.cuh"
#include "attention/masked/softmax.cuh"

namespace gossamer::cuda {

// Part: keys of a tile that a warp works on at a time, and skips where it sees none of them. Stages: tiles of K and V
// that are under way at a time. Ctas: that an SM should hold. Held: queries, and what the next tile shows, stay in
// registers, which more CTAs would need.
template <class Element, int HeadDim, int Queries, int Keys, int PartKeys, int Stages, int Ctas, bool Held>
struct MaskedTraits {
  using T = Element;
  static constexpr int D = HeadDim, TileQ = Queries, TileK = Keys, Part = PartKeys, kStages = Stages, kCtas = Ctas;
  static constexpr bool kHeld = Held;
  static constexpr int kWarps = TileQ / 16, kThreads = kWarps * 32;
  static constexpr int kQueryBytes = TileQ * D * 2, kTileBytes = TileK * D * 2, kStageBytes = 2 * kTileBytes;
  static constexpr int kBarriers = kQueryBytes + kStages * kStageBytes;  // where they lie
  static constexpr int kSharedBytes = kBarriers + 8 * (2 * kStages + 1);
};

template <class Traits>
struct MaskedWarp {
  using T = typename Traits::T;
  static constexpr int D = Traits::D, TileQ = Traits::TileQ, TileK = Traits::TileK, Part = Traits::Part;
  using TileOfQueries = Tile<D, TileQ>;
  using TileOfKeys = Tile<D, TileK>;

  const MaskedWork& w;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t queries[Traits::kHeld ? D / 16 : 1][4];
  MaskedState<D> state;
  uint32_t rows_at, keys_at, values_at;  // this lane's place among 16 queries, keys, values

  __device__ __forceinline__ MaskedWarp(const MaskedWork& w, uint32_t shared) : w(w) {
    rows_at = shared + TileOfQueries::at(warp * 16 + lane % 16, lane / 16);
    keys_at = shared + Traits::kQueryBytes + TileOfKeys::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    values_at = shared + Traits::kQueryBytes + Traits::kTileBytes + TileOfKeys::at(lane % 16, lane / 16);
    state.clear();
  }

  __device__ __forceinline__ void load_queries() {
    if constexpr (Traits::kHeld) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) load_matrices(queries[k], TileOfQueries::pair(rows_at, k));
    }
  }

  __device__ __forceinline__ void gemm_qk(MaskedScores<Part>& x, uint32_t begin) const {
    x.clear();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint32_t at = TileOfKeys::pair(keys_at, k) + begin;
      uint32_t a[4];
      if constexpr (Traits::kHeld) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = queries[k][i];
      } else {
        load_matrices(a, TileOfQueries::pair(rows_at, k));
      }
#pragma unroll
      for (int n = 0; n < Part / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, at + n * 16 * 128);
        Mma<T>::dense(x.s[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
        Mma<T>::dense(x.s[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void gemm_pv(const MaskedScores<Part>& p, uint32_t begin) {
#pragma unroll
    for (int k = 0; k < Part / 16; ++k) {
      const float (&low)[4] = p.s[2 * k], (&high)[4] = p.s[2 * k + 1];
      const uint32_t a[4] = {pack2<T>(low[0], low[1]), pack2<T>(low[2], low[3]), pack2<T>(high[0], high[1]),
                             pack2<T>(high[2], high[3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t b[4];
        load_transposed(b, TileOfKeys::pair(values_at, n) + begin + k * 16 * 128);
        Mma<T>::dense(state.out[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
        Mma<T>::dense(state.out[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
  }

  // `stage`: offset of the stage that has the tile.
  template <bool Bent>
  __device__ __forceinline__ void attend(const SeenKeys<TileK>& tile, uint32_t stage) {
#pragma unroll 1
    for (int i = 0; i < TileK / Part; ++i) {
      const SeenKeys<Part> seen = tile.template part<Part>(i);
      if (!seen.any()) continue;
      const uint32_t begin = stage + i * (Part * 128);
      MaskedScores<Part> x;
      gemm_qk(x, begin);
      if constexpr (Bent) x.bend(w);
      if (!seen.all()) x.hide(seen, t);
      state.weigh(x, w.after);
      gemm_pv(x, begin);
    }
  }

  // Through shared memory, so that whole rows go out: where the warp's queries were, which nobody else reads.
  __device__ __forceinline__ void write(const MaskedPlace& place, uint32_t shared) {
    const int64_t first = (static_cast<int64_t>(place.batch) * w.heads + place.head) * w.q_len;
    const int query = place.query + warp * 16;
    float share[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      share[i] = state.sum[i] == 0.0f ? 0.0f : __fdividef(1.0f, state.sum[i]);
      const int row = query + g + 8 * i;
      if (t == 0 && row < w.q_len && w.lse != nullptr) w.lse[first + row] = log_of_sum(state.top[i], state.sum[i]);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      const float (&low)[4] = state.out[2 * n], (&high)[4] = state.out[2 * n + 1];
      store_matrices(
          TileOfQueries::pair(rows_at, n),
          {pack2<T>(low[0] * share[0], low[1] * share[0]), pack2<T>(low[2] * share[1], low[3] * share[1]),
           pack2<T>(high[0] * share[0], high[1] * share[0]), pack2<T>(high[2] * share[1], high[3] * share[1])});
    }
    __syncwarp();
    constexpr int kChunks = TileOfQueries::kChunks, kRows = 32 / kChunks;  // rows that a warp writes at once
    char* out = static_cast<char*>(w.out) + (first + query) * (2 * D) + lane * 16;
#pragma unroll
    for (int i = 0; i < 16 / kRows; ++i) {
      const int row = i * kRows + lane / kChunks;
      const uint4 x = load_shared4(shared + TileOfQueries::at(warp * 16 + row, lane % kChunks));
      if (query + row < w.q_len) *reinterpret_cast<uint4*>(out + i * 512) = x;
    }
  }
};

// Bent: as in MaskedWork. Cut: some rows are in parts. Kernels of their own, because a short call waits for
// instructions as much as for data, and what merges parts needs the most registers.
template <class Traits, bool Bent, bool Cut>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kCtas)
    masked_kernel(const __grid_constant__ MaskedWork w, const __grid_constant__ TensorMaps maps) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  const int number = w.by_replicas.divide(blockIdx.x), replica = blockIdx.x - number * w.replicas;
  WorkItem item = work_item(w, number);
  const bool listed = w.work != nullptr;
  const TileNumbers columns = listed ? TileNumbers(w.work[number].columns) : TileNumbers(w.columns, item);
  TileNumbers kinds = listed ? TileNumbers(w.work[number].kinds) : TileNumbers(w.kinds, item);
  prepare_ring<Traits>(maps, shared);
  item.row = pinned(item.row);  // or else it would be waited for before the ring is prepared
  const MaskedPlace place(w, replica, item.row, Traits::TileQ);
  MaskedWarp<Traits> warp(w, shared);
  const int row = warp.warp * 16 + warp.g;  // in a tile
  if (item.begin < item.end) {
    const int* bits = w.bits + row * (Traits::TileK / 32);
    SeenKeys<Traits::TileK> seen, next;
    Ring<Traits> ring(w, maps, shared, place, item, columns);
    seen.template load<Traits::TileQ>(bits, kinds.first(0));
    kinds.complete(w.kinds, item);
    if (Cut && item.slot >= 0 && threadIdx.x == 0) arrivals_of(w, replica, work_slots(w, number)).open(w.ticket);
    ring.wait_queries();
    warp.load_queries();
#pragma unroll 1
    for (int i = 0; i < ring.count; ++i) {
      if constexpr (Traits::kHeld) {
        const int next_kind = kinds.at(w.kinds, item, i + 1);
        if (i + 1 < ring.count) next.template load<Traits::TileQ>(bits, next_kind);
      } else {  // no registers for it
        const int kind = kinds.at(w.kinds, item, i);
        if (i > 0) seen.template load<Traits::TileQ>(bits, kind);
      }
      const uint32_t stage = ring.wait(i);
      warp.template attend<Bent>(seen, stage);
      ring.release(i);
      if constexpr (Traits::kHeld) seen = next;
    }
  }
  warp.state.finish();
  if constexpr (Cut) {
    if (item.slot >= 0) return write_part<Traits>(warp.state, w, place, work_slots(w, number), item.slot, row);
  }
  warp.write(place, shared);
}

}  // namespace gossamer::cuda
