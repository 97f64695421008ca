// The thread that asks TMA for the queries, keys and values of one item after the other.
#pragma once

#include "attention/prefill/work.cuh"

namespace gossamer::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

GOSSAMER_INLINE void load_rows(uint32_t to, const CUtensorMap& map, int channel, int head, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(channel), "r"(head), "r"(row), "r"(barrier)
      : "memory");
}

template <class Traits>
struct PrefillProducer {
  const PrefillWork& w;
  const uint32_t shared;
  TilePlace<Traits> keys, values;

  // A tile of keys or values, into its place once both warpgroups are done with what was there.
  __device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap& map, int head, int row, uint32_t full,
                                            uint32_t empty, int parity) {
    hopper::barrier_wait(empty, parity ^ 1);
    hopper::barrier_expect(full, Traits::kKeyBytes);
#pragma unroll
    for (int half = 0; half < Traits::kHalves; ++half) {
      load_rows(to + half * Traits::kKeyBox, map, 64 * half, head, row, full);
    }
  }
  __device__ __forceinline__ void load_keys(const KeyTile& t, int head) {
    load_tile(keys.keys(shared), t.range == KeyRange::far ? w.far_k : w.k, head, t.row, keys.key_full(shared),
              keys.key_empty(shared), keys.parity);
    keys.next();
  }
  __device__ __forceinline__ void load_values(const KeyTile& t, int head) {
    load_tile(values.values(shared), t.range == KeyRange::far ? w.far_v : w.v, head, t.row, values.value_full(shared),
              values.value_empty(shared), values.parity);
    values.next();
  }
  __device__ __forceinline__ void load_queries(int row, int head, int parity) {
#pragma unroll
    for (int group = 0; group < Traits::kGroups; ++group) {
      const uint32_t full = shared + Traits::kQueryBarriers + 8 * group, empty = full + 8 * Traits::kGroups;
      hopper::barrier_wait(empty, parity ^ 1);
      hopper::barrier_expect(full, Traits::kQueryBytes);
#pragma unroll
      for (int half = 0; half < Traits::kHalves; ++half) {
        load_rows(shared + group * Traits::kQueryBytes + half * Traits::kQueryBox, w.q, 64 * half, head,
                  row + group * Traits::kGroupQueries, full);
      }
    }
  }

  // In the order in which consumers wait. The queries are asked for after the first keys, for which there is room
  // while the item before still needs its queries.
  __device__ __forceinline__ void run() {
    for (ItemOrder order; order.item() < w.items; ++order.round) {
      UpcomingItem item;
      item.ask_tile(w, order.item());
      item.ask_sequence(w);
      const QueryTile queries = item.queries();
      const TileKeys all(w.rule, queries);
      const int head = item.head / w.group, partial = all.partial(), count = partial + all.full();
      KeyTile before = all.partial_tile(0);
      load_keys(before, head);
      load_queries(queries.row, item.head, order.round & 1);
      for (int i = 1; i < count; ++i) {
        const KeyTile tile = i < partial ? all.partial_tile(i) : all.full_tile(i - partial);
        load_keys(tile, head);
        load_values(before, head);
        before = tile;
      }
      load_values(before, head);
    }
  }
};

#endif

}  // namespace gossamer::cuda
