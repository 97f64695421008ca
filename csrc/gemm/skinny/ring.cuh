// One skinny GEMM for the kernel in kernel.cuh: its stages in shared memory, and the threads that fill
// them.
#pragma once

#include "gemm/skinny/wgmma.cuh"
#include "gossamer/activation.h"
#include "gossamer/cuda/hopper.cuh"

namespace gossamer::cuda {

// out = activation(x weight^T + bias), or activation(x gate^T + bias) * (x up^T + bias) where `weight` is [gate, up].
struct SkinnyWork {
  CUtensorMap weight;  // boxes of 64 rows, or of 4 times 8 rows of gate and 8 of up
  CUtensorMap x;       // boxes of kTokens rows
  const void* bias;    // or null
  void* out;           // [m, n], contiguous
  int m, n;            // rows of x; results of each
  int tiles, steps;    // of 64 rows of weights; along k, shared by the CTAs of a cluster
  Activation activation;
  bool gated;
};

// How many CTAs an SM has room for. One with many stages is best where clusters share tiles, and mostly for a GEMM
// that another one follows; two with few stages for one that stands alone. Kernels alone, H200, bf16, 4096 x 14336,
// gate and up, then down: one, one 87.6 us (1 row), 88.6 (16), 91.0 (32), 97.3 (64); two, two 88.9, 89.9, 98.9, 102.5;
// two, one 95.6 (64). linear_act: two 32.0 (1), 37.9 (64); one 32.9, 39.3.
enum class SkinnyDepth { one, two };

// Two boxes (256 bytes of a row) in a stage are 2% faster than one; four are not faster. For 64 rows of x that would be
// too few stages.
template <class InputType, int TokensOf, SkinnyDepth D>
struct SkinnyTraits {
  using Input = InputType;
  static constexpr int kTokens = TokensOf;             // rows of x, at least
  static constexpr int kBoxes = kTokens < 64 ? 2 : 1;  // along k, in a stage
  static constexpr int kTileK = 64, kTileN = 64;       // elements of a row of a box; rows of weights
  static constexpr int kBoxBytes = kTileN * 128, kTokenBytes = kTokens * 128;
  static constexpr int kWeightBytes = kBoxBytes * kBoxes, kStageBytes = kWeightBytes + kTokenBytes * kBoxes;
  static constexpr int kSumBytes = kTileN * kTokens * 4;
  static constexpr int kRoom = D == SkinnyDepth::one ? 208 << 10 : (113 << 10) - 256;
  static constexpr int kStages = (kRoom - kSumBytes) / kStageBytes;
  static constexpr int kConsumers = 128, kThreads = kConsumers + 64;
  static constexpr int kSums = kStages * kStageBytes, kBarriers = kSums + kSumBytes;  // where things lie
  static constexpr int kSharedBytes = kBarriers + 16 * kStages;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class Traits>
struct SkinnyRing : hopper::RingPlace<Traits> {
  using hopper::RingPlace<Traits>::RingPlace;
  __device__ __forceinline__ uint32_t weight(int box) const { return this->data() + box * Traits::kBoxBytes; }
  __device__ __forceinline__ uint32_t x(int box) const {
    return this->data() + Traits::kWeightBytes + box * Traits::kTokenBytes;
  }
  __device__ __forceinline__ void prepare() const {
    for (int i = 0; i < Traits::kStages; ++i) {
      const uint32_t barrier = this->shared + Traits::kBarriers + 8 * i;
      hopper::barrier_init(barrier, 2);  // both copying threads
      hopper::barrier_init(barrier + 8 * Traits::kStages, 1);
    }
    hopper::barriers_ready();
  }
};

GOSSAMER_INLINE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Lets the next kernel of the stream begin, if it was launched so. It waits where it needs what this one gives.
GOSSAMER_INLINE void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Until the kernel before has ended; what it wrote, TMA may then read.
GOSSAMER_INLINE void await_kernel_before() { asm volatile("griddepcontrol.wait;\n\tfence.proxy.async;" ::: "memory"); }

// For what is read once and never again: it goes first when the L2 needs room.
GOSSAMER_INLINE uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
GOSSAMER_INLINE void load_rows(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier,
                               uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
// 8 rows of gate from row 8 * eight on, 8 of up, and so on.
GOSSAMER_INLINE void load_pairs(uint32_t to, const CUtensorMap& map, int column, int eight, uint32_t barrier,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(0), "r"(eight), "r"(barrier), "l"(policy)
      : "memory");
}

// What a CTA does: tiles first, first + stride, ...; steps begin .. end-1 of each.
struct SkinnyShare {
  int rank, ctas;  // in its cluster
  int first, stride, begin, end;

  __device__ __forceinline__ explicit SkinnyShare(const SkinnyWork& w) : rank(hopper::cluster_rank()) {
    asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(ctas));
    first = blockIdx.x / ctas, stride = gridDim.x / ctas;
    begin = w.steps * rank / ctas, end = w.steps * (rank + 1) / ctas;
  }
};

// The thread that copies weights. They do not depend on the kernel before.
template <class Traits>
GOSSAMER_INLINE void copy_weights(const SkinnyWork& w, uint32_t shared, const SkinnyShare& share) {
  SkinnyRing<Traits> ring(shared);
  const uint64_t policy = evict_first();
  for (int tile = share.first; tile < w.tiles; tile += share.stride) {
    for (int k = share.begin; k < share.end; ++k, ring.next()) {
      hopper::barrier_wait(ring.empty(), ring.parity ^ 1);
      hopper::barrier_expect(ring.full(), Traits::kWeightBytes);
#pragma unroll
      for (int i = 0; i < Traits::kBoxes; ++i) {
        const int column = (k * Traits::kBoxes + i) * Traits::kTileK;
        if (w.gated) {
          load_pairs(ring.weight(i), w.weight, column, tile * (Traits::kTileN / 16), ring.full(), policy);
        } else {
          load_rows(ring.weight(i), w.weight, column, tile * Traits::kTileN, ring.full(), policy);
        }
      }
    }
  }
}

// The thread that copies x.
template <class Traits>
GOSSAMER_INLINE void copy_x(const SkinnyWork& w, uint32_t shared, const SkinnyShare& share) {
  SkinnyRing<Traits> ring(shared);
  await_kernel_before();
  for (int tile = share.first; tile < w.tiles; tile += share.stride) {
    for (int k = share.begin; k < share.end; ++k, ring.next()) {
      hopper::barrier_wait(ring.empty(), ring.parity ^ 1);
      hopper::barrier_expect(ring.full(), Traits::kBoxes * Traits::kTokenBytes);
#pragma unroll
      for (int i = 0; i < Traits::kBoxes; ++i) {
        hopper::load_box(ring.x(i), w.x, (k * Traits::kBoxes + i) * Traits::kTileK, 0, ring.full());
      }
    }
  }
}

#endif

}  // namespace gossamer::cuda
