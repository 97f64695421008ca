// GEMM of large matrices on sm_90a: C = epilogue(A B^T), A [m, k], B [n, k], both contiguous along k. Or two of them,
// C = epilogue(A gate^T, A up^T): half of a tile's columns are of each, so that one thread has both sums of a result.
//
// A CTA stays on its SM and takes tile after tile. One thread asks TMA for tiles of A and B, some stages
// ahead; two warpgroups multiply them by wgmma, straight from shared memory. Two CTAs form a cluster and take tiles
// below each other: each loads half of B for both, so that the L2 is asked for a third less. Results leave through
// shared memory and TMA, while the next tile is multiplied.
#pragma once

#include "gemm/hopper/ring.cuh"

namespace gossamer::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A warpgroup that multiplies.
template <class Traits>
struct Consumer {
  using Mma = hopper::Wgmma<typename Traits::Input>;
  using Sum = typename Mma::Accumulator;
  using Epilogue = typename Traits::Epilogue;
  static constexpr bool kOwn = Traits::kOwn, kBlocked = Traits::kSharing == Sharing::blocked;
  static constexpr int kTileN = Traits::kTileN, kGroupM = Traits::kGroupM, kWidth = Traits::kWidth;
  static constexpr int kTurn = 3;  // the barrier of the first warpgroup's turn to multiply; the next is the other's
  // Rows of the results of a thread: pairs, 64 further down for each.
  static constexpr int kRowPairs = kGroupM / 64;

  const GemmWork& w;
  const uint32_t shared;
  const int group, thread;  // which warpgroup, and in it
  GemmRing<Traits> ring;
  float* columns;  // a number of each column, in shared memory
  Sum sums[Traits::kSums];

  __device__ __forceinline__ Consumer(const GemmWork& w, uint8_t* memory, int group)
      : w(w), shared(hopper::shared_offset(memory)), group(group), thread(threadIdx.x % 128), ring(shared) {
    // The first turn is warpgroup 0's.
    if (kOwn && group == 1) hopper::tell_warpgroup(kTurn);
    columns = reinterpret_cast<float*>(memory + Traits::kColumns) + group * kTileN;
  }

  __device__ __forceinline__ void release(uint32_t empty) const {
    if (thread < Traits::kCluster) hopper::barrier_arrive_at(empty, thread);
  }

  // 64 rows by 32 bytes along k, into the sums from First on.
  template <int First>
  __device__ __forceinline__ void multiply_step(uint64_t a, uint64_t b, int keep) {
    if constexpr (kTileN == 192) {
      Mma::template n192<First>(sums, a, b, keep);
    } else {
      Mma::template n128<First>(sums, a, b, keep);
    }
  }

  // One stage; keep: whether the sums have something already. First: of the set of sums, for `blocked`.
  template <int First = 0>
  __device__ __forceinline__ void multiply(bool keep) {
    const uint64_t a = hopper::descriptor(ring.a() + (kOwn ? 0 : group * kGroupM * 128));
    const uint64_t b = hopper::descriptor(ring.b());
    hopper::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int more = keep || k > 0;
      multiply_step<First>(a + 2 * k, b + 2 * k, more);
      if constexpr (kGroupM == 128) multiply_step<kTileN / 2>(a + 2 * k + (64 * 128 >> 4), b + 2 * k, more);
    }
    hopper::wgmma_commit();
  }

  // The main loop of a tile. A stage is given back when the next one's wgmma are under way. With tiles of their own
  // warpgroups multiply by turns: stages come in that order, and a barrier two phases ahead cannot be waited for.
  // others: whether the other warpgroup's turn is next.
  __device__ __forceinline__ void multiply_all(bool others) {
    uint32_t before = 0;
    if constexpr (kOwn) hopper::await_warpgroup(kTurn + group);
    for (int k = 0; k < w.k_steps; ++k, ring.next()) {
      hopper::barrier_wait(ring.full(), ring.parity);
      multiply(k > 0);
      if (k > 0) {
        hopper::wgmma_wait<1>();
        release(before);
      }
      before = ring.empty();
    }
    if (kOwn && others) hopper::tell_warpgroup(kTurn + 1 - group);
    hopper::wgmma_wait<0>();
    release(before);
  }

  // The scales of one step along k, for both rows of this thread.
  __device__ __forceinline__ float2 step_scales(int row, int column, int k) const {
    const float s = __ldg(w.column_scale + static_cast<int64_t>(column / 128) * w.column_step + k);
    const int first = row + thread / 32 * 16 + thread % 32 / 4;
    const float* p = w.row_scale + static_cast<int64_t>(first) * w.row_step + k;
    return {first < w.m ? __ldg(p) * s : 0.0f, first + 8 < w.m ? __ldg(p + 8 * w.row_step) * s : 0.0f};
  }

  // Adds the sums of a set, scaled, to the totals.
  template <int First>
  __device__ __forceinline__ void add_up(Sum (&totals)[64], const float2& scale) const {
#pragma unroll
    for (int i = 0; i < 64; ++i) totals[i] += sums[First + i] * (i % 4 < 2 ? scale.x : scale.y);
  }

  // Step k of the tile into the sums from First on. Returns its scales.
  template <int First>
  __device__ __forceinline__ float2 begin_step(int k, int row, int column) {
    hopper::barrier_wait(ring.full(), ring.parity);
    multiply<First>(false);
    return step_scales(row, column, k);
  }
  // The same, while the sums of the step before are waited for, scaled and added up.
  template <int First>
  __device__ __forceinline__ void next_step(int k, int row, int column, Sum (&totals)[64], float2& scale) {
    const uint32_t before = ring.empty();
    ring.next();
    const float2 next = begin_step<First>(k, row, column);
    hopper::wgmma_wait<1>();
    release(before);
    add_up<64 - First>(totals, scale);
    scale = next;
  }

  // The main loop of a tile where steps have scales, added up in float32. Sets of sums are used by turns; steps are
  // written one after the other without conditions, or else the compiler waits for every wgmma.
  __device__ __forceinline__ void multiply_steps(int row, int column) {
    Sum totals[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) totals[i] = 0;
    float2 scale = begin_step<0>(0, row, column);
    int k = 1;
    for (; k + 1 < w.k_steps; k += 2) {
      next_step<64>(k, row, column, totals, scale);
      next_step<0>(k + 1, row, column, totals, scale);
    }
    if (k < w.k_steps) {
      next_step<64>(k, row, column, totals, scale);
      hopper::wgmma_wait<0>();
      add_up<64>(totals, scale);
    } else {
      hopper::wgmma_wait<0>();
      add_up<0>(totals, scale);
    }
    release(ring.empty());
    ring.next();
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[i] = totals[i];
  }

  __device__ __forceinline__ void load_row_scales(int row, float (&scales)[kRowPairs][2]) const {
#pragma unroll
    for (int i = 0; i < 2 * kRowPairs; ++i) {
      const int at = row + thread / 32 * 16 + thread % 32 / 4 + 8 * i + (i >= 2 ? 48 : 0);
      const bool known = Epilogue::kScales && w.row_scale != nullptr && at < w.m;
      scales[i / 2][i % 2] = known ? __ldg(w.row_scale + static_cast<int64_t>(at) * w.row_step) : 1.0f;
    }
  }

  // A piece of 64 rows at a time, in buffers by turns. One thread stores, and knows when a buffer has been read.
  template <int Piece = 0>
  __device__ __forceinline__ void finish(int row, int column, const float (&scales)[kRowPairs][2]) const {
    constexpr int kColumns = Traits::kPieceColumns, kAcross = kWidth / kColumns;
    constexpr int kDown = Piece / kAcross, kRight = Piece % kAcross * kColumns, kBuffers = Traits::kBuffers;
    constexpr int kFirst = (kDown * kTileN + kRight) / 2;  // sum of a thread, which has one of each 64 x 2
    const uint32_t staging = shared + Traits::kStaging + (kBuffers * group + Piece % kBuffers) * Traits::kPieceBytes;
    if (thread == 0) hopper::wait_store_reads<kBuffers - 1>();
    hopper::warpgroup_sync(1 + group);
    stage<Traits, kFirst>(w, sums, scales[kDown], columns + kRight, column + kRight, staging);
    hopper::fence_for_copies();
    hopper::warpgroup_sync(1 + group);
    if (thread == 0) {
      if (row + 64 * kDown < w.m && column + kRight < w.n) {
        hopper::store_box(w.c, column + kRight, row + 64 * kDown, staging);
      }
      hopper::commit_stores();  // also where nothing is stored: groups are counted to know which buffer is free
    }
    if constexpr (Piece + 1 < Traits::kPieces) finish<Piece + 1>(row, column, scales);
  }

  __device__ __forceinline__ void take(const typename Traits::Order& tile, int rank, bool others) {
    const int row = (2 * tile.row + rank) * Traits::kTileM + (kOwn ? 0 : group * kGroupM);
    const int column = tile.column * kWidth;
    constexpr int kEach = (kTileN + 127) / 128;
    float scales[kRowPairs][2], mine[kEach];  // asked for before the main loop, which takes longer
    load_row_scales(row, scales);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = thread + 128 * i, up = Traits::kGated && at >= kWidth ? w.n - kWidth : 0;  // up follows gate
      mine[i] = Epilogue::column(w, column + at + up);
    }
    if constexpr (kBlocked) {
      multiply_steps(row, column);
    } else {
      multiply_all(others);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (thread + 128 * i < kTileN) columns[thread + 128 * i] = mine[i];
    }
    finish(row, column, scales);
  }

  __device__ __forceinline__ void run(int rank) {
    const int step = gridDim.x / 2, tiles = w.tile_rows * w.tile_columns;
    int t = blockIdx.x / 2;  // with tiles of their own, every second one of the CTA, and its stages
    if (kOwn && group == 1) t += step, ring.skip(w.k_steps);
    for (; t < tiles; t += kOwn ? 2 * step : step) {
      take(typename Traits::Order(w, t), rank, t + step < tiles);
      if (kOwn) ring.skip(w.k_steps);
    }
    if (thread == 0) hopper::wait_stores();
  }
};

#endif

// Before sm_90, where the kernel is empty and is not called, there are no clusters.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GOSSAMER_PAIR_OF_CTAS __cluster_dims__(2, 1, 1)
#else
#define GOSSAMER_PAIR_OF_CTAS
#endif

template <class Traits>
__global__ void GOSSAMER_PAIR_OF_CTAS __launch_bounds__(Traits::kThreads, 1)
    gemm_kernel(const __grid_constant__ GemmWork w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = hopper::shared_offset(memory);
  const int rank = hopper::cluster_rank();
  prepare<Traits>(w, shared);
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) produce<Traits>(w, shared, rank);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    // The same in all lanes, which the compiler does not see by itself: addresses then lie in uniform registers.
    Consumer<Traits>(w, memory, __shfl_sync(~0u, threadIdx.x / 128, 0) - 1).run(rank);
    __syncwarp();
  }
  hopper::cluster_sync();  // or else a CTA could end while the other one still writes to its memory
#endif
}

#undef GOSSAMER_PAIR_OF_CTAS

}  // namespace gossamer::cuda
