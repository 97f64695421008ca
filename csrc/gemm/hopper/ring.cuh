// The stages of a CTA in shared memory, and the thread that fills them.
#pragma once

#include "gemm/hopper/epilogue.cuh"
#include "gemm/hopper/wgmma.cuh"

namespace gossamer::cuda {

template <class InputType, class EpilogueType, Sharing S>
struct GemmTraits {
  using Input = InputType;
  using Epilogue = EpilogueType;
  static constexpr Sharing kSharing = S;
  static constexpr bool kGated = Epilogue::kGated;  // the first half of a tile's columns are gate's, the other up's
  static constexpr bool kOwn = S == Sharing::tiles || S == Sharing::wide_tiles;  // tiles of a warpgroup
  static constexpr int kGroupM = S == Sharing::blocked ? 64 : 128;               // rows of a warpgroup in a tile
  static constexpr int kTileM = kOwn ? kGroupM : 2 * kGroupM;
  static constexpr int kTileN = S == Sharing::tiles || S == Sharing::blocked ? 128 : 192;
  static constexpr int kTileK = 128 / sizeof(Input);
  static constexpr int kWidth = kGated ? kTileN / 2 : kTileN;  // of a tile's results
  using Order = TileOrder<1024 / kTileM>;                      // groups of 2048 rows

  static constexpr int kWarpgroups = 2, kThreads = 128 * (1 + kWarpgroups), kCluster = 2;
  static constexpr int kReaders = kOwn ? 1 : kWarpgroups;         // of a stage, in a CTA
  static constexpr int kSets = S == Sharing::blocked ? 2 : 1;     // of sums, used by turns
  static constexpr int kSums = kSets * (kGroupM * kTileN / 128);  // of a thread

  // Results leave in pieces of 64 x 64, or 64 x 48 where 64 does not divide a tile's columns, through buffers: two, or
  // one where that makes room for another stage.
  static constexpr int kPieceColumns = kWidth % 64 == 0 ? 64 : 48, kPieceBytes = 64 * 2 * kPieceColumns;
  static constexpr int kPieces = kGroupM / 64 * (kWidth / kPieceColumns);
  static constexpr int kBuffers = S == Sharing::wide_tiles && !kGated ? 1 : 2;
  static constexpr int kBytesA = kTileM * 128, kBytesB = kTileN * 128, kStageBytes = kBytesA + kBytesB;
  static constexpr int kStages = ((224 << 10) - kWarpgroups * kBuffers * kPieceBytes) / kStageBytes;
  static constexpr int kStaging = kStages * kStageBytes;  // where things lie
  static constexpr int kColumns = kStaging + kWarpgroups * kBuffers * kPieceBytes;
  static constexpr int kBarriers = kColumns + kWarpgroups * kTileN * 4;
  static constexpr int kSharedBytes = kBarriers + 16 * kStages;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class Traits>
struct GemmRing : hopper::RingPlace<Traits> {
  using hopper::RingPlace<Traits>::RingPlace;
  __device__ __forceinline__ uint32_t a() const { return this->data(); }
  __device__ __forceinline__ uint32_t b() const { return a() + Traits::kBytesA; }
  __device__ __forceinline__ void skip(int steps) {
    const int to = this->stage + steps, rounds = to / Traits::kStages;
    this->stage = to - rounds * Traits::kStages;
    this->parity ^= rounds & 1;
  }
};

template <class Traits>
GOSSAMER_INLINE void prepare(const GemmWork& w, uint32_t shared) {
  if (threadIdx.x == 0) {
    hopper::prefetch_map(w.a), hopper::prefetch_map(w.b), hopper::prefetch_map(w.c);
    if (Traits::kGated) hopper::prefetch_map(w.up);
    const uint32_t barriers = shared + Traits::kBarriers;
    for (int i = 0; i < Traits::kStages; ++i) {
      hopper::barrier_init(barriers + 8 * i, 1);
      hopper::barrier_init(barriers + 8 * (Traits::kStages + i), Traits::kReaders * Traits::kCluster);
    }
    hopper::barriers_ready();
  }
  hopper::cluster_sync();
}

template <class Traits>
GOSSAMER_INLINE void produce(const GemmWork& w, uint32_t shared, int rank) {
  constexpr int kHalf = Traits::kTileN / 2;
  const CUtensorMap& b = Traits::kGated && rank == 1 ? w.up : w.b;
  GemmRing<Traits> ring(shared);
  for (int t = blockIdx.x / 2; t < w.tile_rows * w.tile_columns; t += gridDim.x / 2) {
    const typename Traits::Order tile(w, t);
    const int row = (2 * tile.row + rank) * Traits::kTileM;
    const int column = tile.column * Traits::kWidth + (Traits::kGated ? 0 : rank * kHalf);  // a row of b
    for (int k = 0; k < w.k_steps; ++k, ring.next()) {
      hopper::barrier_wait(ring.empty(), ring.parity ^ 1);
      hopper::barrier_expect(ring.full(), Traits::kStageBytes);
      hopper::load_box(ring.a(), w.a, k * Traits::kTileK, row, ring.full());
      hopper::load_box_to(3, ring.b() + rank * kHalf * 128, b, k * Traits::kTileK, column, ring.full());
    }
  }
}

#endif

}  // namespace gossamer::cuda
