// What the kernel of prefill_attention is launched with, and how a CTA takes tiles of queries one after the other.
#pragma once

#include <cuda.h>

#include "attention/prefill/keys.cuh"
#include "gossamer/cuda/hopper.cuh"

namespace gossamer::cuda {

struct PrefillWork {
  CUtensorMap q, k, v, far_k, far_v;  // [D, heads, tokens]: boxes of 64 channels of 64 queries or 128 keys of a head
  const int* sequences;     // [, 7]: first query row, queries, position, first near row, near rows, edge, first far row
  const int2* tiles;        // (sequence, tile of it), those with most keys first
  void* out;                // contiguous [tokens, heads, D]
  int items, heads, group;  // items: tiles times heads; group: query heads of a key head
  PrefillRule rule;
  float factor;  // of scores, for powers of 2
};

template <class Element, int HeadDim>
struct PrefillTraits {
  using T = Element;
  static constexpr int D = HeadDim, kHalves = D / 64;  // 64 channels are as wide as the swizzle: 128 bytes
  static constexpr int kGroups = 2, kGroupQueries = kTileQueries / kGroups, kThreads = 128 * (1 + kGroups);
  static constexpr int kStages = D == 64 ? 4 : 2;
  static constexpr int kQueryBox = kGroupQueries * 128, kKeyBox = kTileKeys * 128;  // bytes
  static constexpr int kQueryBytes = kQueryBox * kHalves, kKeyBytes = kKeyBox * kHalves;
  static constexpr int kPitch = 2 * D + 16;  // of a row of results: 8 of them then lie in different banks

  // Where things lie in shared memory: the queries of each warpgroup, keys, values, results of each warp.
  static constexpr int kKeys = kGroups * kQueryBytes, kValues = kKeys + kStages * kKeyBytes;
  static constexpr int kResults = kValues + kStages * kKeyBytes;
  static constexpr int kQueryBarriers = kResults + kGroups * 4 * 16 * kPitch;
  static constexpr int kKeyBarriers = kQueryBarriers + 2 * kGroups * 8;  // first all `full`, then all `empty`
  static constexpr int kValueBarriers = kKeyBarriers + 2 * kStages * 8;
  static constexpr int kSharedBytes = kValueBarriers + 2 * kStages * 8;
};

#if __CUDA_ARCH__ >= 900

// A place in one of the rings, of keys or of values.
template <class Traits>
struct TilePlace {
  int stage = 0, parity = 0;

  __device__ __forceinline__ uint32_t key_full(uint32_t shared) const {
    return shared + Traits::kKeyBarriers + 8 * stage;
  }
  __device__ __forceinline__ uint32_t value_full(uint32_t shared) const {
    return shared + Traits::kValueBarriers + 8 * stage;
  }
  __device__ __forceinline__ uint32_t key_empty(uint32_t shared) const {
    return key_full(shared) + 8 * Traits::kStages;
  }
  __device__ __forceinline__ uint32_t value_empty(uint32_t shared) const {
    return value_full(shared) + 8 * Traits::kStages;
  }
  __device__ __forceinline__ uint32_t keys(uint32_t shared) const {
    return shared + Traits::kKeys + stage * Traits::kKeyBytes;
  }
  __device__ __forceinline__ uint32_t values(uint32_t shared) const {
    return shared + Traits::kValues + stage * Traits::kKeyBytes;
  }
  __device__ __forceinline__ void next() {
    if (++stage == Traits::kStages) stage = 0, parity ^= 1;
  }
};

GOSSAMER_INLINE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The items of this CTA: one of each round of the grid, in every second round from behind. Items come with falling
// work, so that all CTAs get as much.
struct ItemOrder {
  int round = 0;

  __device__ __forceinline__ int item() const {
    const int place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return round * gridDim.x + place;
  }
};

// Numbers of an item, on their way from memory: asked for long before they are used.
struct UpcomingItem {
  int head, tile;
  int2 which;
  int numbers[7];

  __device__ __forceinline__ void ask_tile(const PrefillWork& w, int item) {
    const int known = lesser(item, w.items - 1);
    tile = known / w.heads, head = known - tile * w.heads;
    asm volatile("ld.global.v2.s32 {%0, %1}, [%2];" : "=r"(which.x), "=r"(which.y) : "l"(w.tiles + tile));
  }
  __device__ __forceinline__ void ask_sequence(const PrefillWork& w) {
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      asm volatile("ld.global.s32 %0, [%1];" : "=r"(numbers[i]) : "l"(w.sequences + 7 * int64_t{which.x} + i));
    }
  }
  __device__ __forceinline__ QueryTile queries() const {
    const int before = which.y * kTileQueries, left = lesser(numbers[1] - before, kTileQueries);
    const int first = numbers[2] + before;
    return {numbers[0] + before, left,       first,      first + left - 1, numbers[2] + numbers[1],
            numbers[3],          numbers[4], numbers[5], numbers[6]};
  }
};

#endif

}  // namespace gossamer::cuda
