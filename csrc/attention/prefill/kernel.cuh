// Attention of prompts on sm_90a, after FlashAttention-3.
//
// A CTA stays on its SM and takes 128 queries of one head after the other. One thread asks TMA for tiles of 128 keys
// and values, two warpgroups have 64 queries each. While the tensor cores multiply the weights of one tile by its
// values, and before that queries by the keys of the next one, the other warpgroup computes its softmax: they take
// turns by named barriers. Only tiles that some query sees in part go through the mask, all of them before the others.
#pragma once

#include "attention/prefill/produce.cuh"
#include "attention/prefill/softmax.cuh"
#include "attention/prefill/wgmma.cuh"

namespace gossamer::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class Traits>
struct PrefillConsumer {
  using T = typename Traits::T;
  static constexpr int D = Traits::D;
  static constexpr int kTurn = 1, kZeroed = 3;  // named barriers, one for each warpgroup

  const PrefillWork& w;
  const uint32_t shared;
  const int group, thread;  // which warpgroup, and in it
  TilePlace<Traits> keys, values;
  float s[64], o[D / 2];  // scores, then weights; sums of values
  uint32_t p[32];         // weights, rounded
  PrefillState state;

  __device__ __forceinline__ PrefillConsumer(const PrefillWork& w, uint32_t shared, int group)
      : w(w), shared(shared), group(group), thread(threadIdx.x % 128) {}

  __device__ __forceinline__ uint32_t query_full() const { return shared + Traits::kQueryBarriers + 8 * group; }
  __device__ __forceinline__ uint32_t query_empty() const { return query_full() + 8 * Traits::kGroups; }
  __device__ __forceinline__ void release(uint32_t empty) const {
    if (thread == 0) barrier_arrive(empty);
  }

  // Asks for s = q k of the tile in `keys`.
  __device__ __forceinline__ void multiply_keys() {
    const uint64_t a = hopper::descriptor(shared + group * Traits::kQueryBytes);
    const uint64_t b = hopper::descriptor(keys.keys(shared));
    hopper::wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const int half = k / 4, step = k % 4;
      hopper::Wgmma<T>::template n128<0>(s, a + (half * Traits::kQueryBox >> 4) + 2 * step,
                                         b + (half * Traits::kKeyBox >> 4) + 2 * step, k > 0);
    }
    hopper::wgmma_commit();
  }

  // Asks for o += p v of the tile in `values`.
  __device__ __forceinline__ void multiply_values() {
    using Weighted = hopper::Weighted<T>;
    const uint64_t v = hopper::values_descriptor(values.values(shared), Traits::kKeyBox);
    hopper::wgmma_fence();
    Weighted::template add<0>(o, p, v);
    Weighted::template add<4>(o, p, v + 128);
    Weighted::template add<8>(o, p, v + 256);
    Weighted::template add<12>(o, p, v + 384);
    Weighted::template add<16>(o, p, v + 512);
    Weighted::template add<20>(o, p, v + 640);
    Weighted::template add<24>(o, p, v + 768);
    Weighted::template add<28>(o, p, v + 896);
    hopper::wgmma_commit();
  }

  __device__ __forceinline__ void round_weights() {
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = pack2<T>(s[2 * i], s[2 * i + 1]);
  }

  __device__ __forceinline__ void mask(const TileKeys& all, const QueryTile& queries, const KeyTile& tile) {
    const int row = group * Traits::kGroupQueries + thread / 32 * 16 + thread % 32 / 4;
    Interval seen[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      seen[i] = all.seen(tile.range, lesser(queries.first + row + 8 * i, queries.last));
      seen[i].low -= tile.position, seen[i].high -= tile.position;
    }
    hide(s, seen);
  }

  // Rows of the tile in `values` that are not the sequence's own may hold anything, also NaN, which weights of 0 would
  // not keep out: each warpgroup writes zeros there before it multiplies. Both may, as they write the same.
  __device__ __forceinline__ void clear_foreign(int own) {
    if (own >= kTileKeys) return;
    hopper::barrier_wait(values.value_full(shared), values.parity);
    own = greater(own, 0);
    const uint32_t first = values.values(shared) + own * 128;
#pragma unroll
    for (int half = 0; half < Traits::kHalves; ++half) {
      for (int at = thread * 16; at < (kTileKeys - own) * 128; at += 128 * 16) {
        store_shared4(first + half * Traits::kKeyBox + at, make_uint4(0, 0, 0, 0));
      }
    }
    hopper::fence_for_copies();
    hopper::warpgroup_sync(kZeroed + group);
  }

  // The first tile: there is nothing yet to multiply its softmax with.
  __device__ __forceinline__ void begin(const TileKeys& all, const QueryTile& queries, int parity, bool only) {
    const KeyTile tile = all.partial_tile(0);
    hopper::barrier_wait(query_full(), parity);
    hopper::barrier_wait(keys.key_full(shared), keys.parity);
    multiply_keys();
#pragma unroll
    for (int i = 0; i < D / 2; ++i) o[i] = 0.0f;
    state.clear();
    hopper::wait_for_scores<0>(s);
    release(keys.key_empty(shared));
    if (only) release(query_empty());
    keys.next();
    mask(all, queries, tile);
    state.weigh(s, w.factor);
    round_weights();
    clear_foreign(tile.own);
  }

  // Scores of the tile in `keys`, and the values of the one before.
  template <bool Partial>
  __device__ __forceinline__ void step(const TileKeys& all, const QueryTile& queries, int number, bool last) {
    hopper::barrier_wait(keys.key_full(shared), keys.parity);
    hopper::await_warpgroup(kTurn + group);
    multiply_keys();
    hopper::barrier_wait(values.value_full(shared), values.parity);
    multiply_values();
    hopper::tell_warpgroup(kTurn + 1 - group);
    hopper::wait_for_scores<1>(s);
    release(keys.key_empty(shared));
    if (last) release(query_empty());
    keys.next();
    KeyTile tile;
    if constexpr (Partial) {
      tile = all.partial_tile(number);
      mask(all, queries, tile);
    }
    const bool raised = state.weigh(s, w.factor);
    // Nobody waits here, as above: it is a branch, behind which the compiler would otherwise move the exponentials, and
    // behind the wait for the tensor cores, which are to work meanwhile.
    hopper::settle(s);
    hopper::barrier_wait(values.value_full(shared), values.parity);
    hopper::wait_for_sums(o, p);
    release(values.value_empty(shared));
    values.next();
    round_weights();
    if (raised) {
#pragma unroll
      for (int i = 0; i < D / 2; ++i) o[i] *= state.keep[i % 4 / 2];
    }
    if constexpr (Partial) clear_foreign(tile.own);
  }

  __device__ __forceinline__ void end(const QueryTile& queries, int head) {
    hopper::barrier_wait(values.value_full(shared), values.parity);
    multiply_values();
    float inverse[2];
    state.finish(inverse);
    hopper::wait_for_sums(o, p);
    release(values.value_empty(shared));
    values.next();
    store(queries, head, inverse);
  }

  // Each warp writes 16 rows through memory of its own, to write whole rows then.
  __device__ __forceinline__ void store(const QueryTile& queries, int head, const float (&inverse)[2]) const {
    const int lane = thread % 32, warp = group * 4 + thread / 32;
    const uint32_t results = shared + Traits::kResults + warp * 16 * Traits::kPitch;
    const uint32_t line = results + lane % 16 * Traits::kPitch + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const float* x = o + 8 * i;
      const uint32_t words[4] = {
          pack2<T>(x[0] * inverse[0], x[1] * inverse[0]), pack2<T>(x[2] * inverse[1], x[3] * inverse[1]),
          pack2<T>(x[4] * inverse[0], x[5] * inverse[0]), pack2<T>(x[6] * inverse[1], x[7] * inverse[1])};
      store_words(line + 32 * i, words);
    }
    __syncwarp();
    constexpr int kLanes = D / 8, kRows = 32 / kLanes;  // lanes of a row, rows at a time
    const int first = warp * 16 + lane / kLanes;
    T* to = static_cast<T*>(w.out) + (int64_t{queries.row + first} * w.heads + head) * D + lane % kLanes * 8;
#pragma unroll
    for (int i = 0; i < 16; i += kRows) {
      const uint4 row = load_shared4(results + (lane / kLanes + i) * Traits::kPitch + lane % kLanes * 16);
      if (first + i < queries.queries) *reinterpret_cast<uint4*>(to + int64_t{i} * w.heads * D) = row;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run() {
    if (group == 1) hopper::tell_warpgroup(kTurn);  // the first turn is warpgroup 0's
    ItemOrder order;
    UpcomingItem item;
    item.ask_tile(w, order.item());
    item.ask_sequence(w);
    while (order.item() < w.items) {
      const QueryTile queries = item.queries();
      const TileKeys all(w.rule, queries);
      const int head = item.head, partial = all.partial(), full = all.full(), parity = order.round & 1;
      ++order.round;
      item.ask_tile(w, order.item());
      begin(all, queries, parity, partial + full == 1);
      for (int i = 1; i < partial; ++i) step<true>(all, queries, i, i + 1 == partial + full);
      item.ask_sequence(w);
      for (int i = 0; i < full; ++i) step<false>(all, queries, i, i + 1 == full);
      end(queries, head);
    }
  }
};

template <class Traits>
GOSSAMER_INLINE void prepare(const PrefillWork& w, uint32_t shared) {
  if (threadIdx.x == 0) {
    hopper::prefetch_map(w.q), hopper::prefetch_map(w.k), hopper::prefetch_map(w.v);
    for (int i = 0; i < 2 * Traits::kGroups; ++i) hopper::barrier_init(shared + Traits::kQueryBarriers + 8 * i, 1);
    for (int i = 0; i < 2 * Traits::kStages; ++i) {
      const int arrivals = i < Traits::kStages ? 1 : Traits::kGroups;
      hopper::barrier_init(shared + Traits::kKeyBarriers + 8 * i, arrivals);
      hopper::barrier_init(shared + Traits::kValueBarriers + 8 * i, arrivals);
    }
    hopper::barriers_ready();
  }
  __syncthreads();
}

#endif

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) prefill_kernel(const __grid_constant__ PrefillWork w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = hopper::shared_offset(memory);
  prepare<Traits>(w, shared);
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) PrefillProducer<Traits>{w, shared}.run();
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    // The same in all lanes, which the compiler does not see by itself: addresses then lie in uniform registers.
    PrefillConsumer<Traits>(w, shared, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1).run();
  }
#endif
}

}  // namespace gossamer::cuda
