// Skinny GEMMs, of 1 to 64 rows (decoding), on sm_90a, where reading the weights is all that takes time.
//
// Rows of weights are wgmma's rows, those of x its columns, so that no multiplication is wasted. A CTA has 64 rows of
// weights: one thread asks TMA for them, some stages ahead, one for x, and a warpgroup multiplies. Where
// there are too few rows to keep all SMs busy, the CTAs of a cluster share them, each with a part of k; their sums are
// added in the order of the CTAs, through shared memory.
//
// A second GEMM that takes the results of the first one begins while that one ends: weights come before it waits.
// What was slower on an H200, for one row of gated_mlp: both GEMMs in one launch with a queue of tiles (90.3 us, not
// 87.6), sums of parts through global memory (91.7), asking the L2 for the second one's weights early (88.3 to 90).
#pragma once

#include "gemm/activation.cuh"
#include "gemm/hopper/epilogue.cuh"
#include "gemm/skinny/ring.cuh"

namespace gossamer::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// With the GELU that is right in float32 as well: time is not short here.
GOSSAMER_INLINE float activated_by(Activation a, float x) {
  switch (a) {
    case Activation::gelu:
      return math::gelu_erf<FastMath, math::TailFit8>(x);
    case Activation::gelu_tanh:
      return activated<Activation::gelu_tanh>(x);
    case Activation::silu:
      return activated<Activation::silu>(x);
    case Activation::mish:
      return activated<Activation::mish>(x);
    case Activation::relu2:
      return activated<Activation::relu2>(x);
    case Activation::relu:
      return activated<Activation::relu>(x);
    default:
      return x;
  }
}

GOSSAMER_INLINE void keep_sums(uint32_t to, const float* sums) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(sums[0]), "f"(sums[1]), "f"(sums[2]),
               "f"(sums[3])
               : "memory");
}
GOSSAMER_INLINE float4 kept_sums(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
// The same, of another CTA of the cluster.
GOSSAMER_INLINE float4 kept_sums(uint32_t from, int rank) {
  float4 v;
  asm volatile(
      "{\n\t.reg .b32 there;\n\t"
      "mapa.shared::cluster.u32 there, %4, %5;\n\t"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(from), "r"(rank)
      : "memory");
  return v;
}

// The warpgroup that multiplies: steps begin .. end-1 of a tile. Leaves its sums in shared memory, four numbers of each
// thread side by side.
template <class Traits>
GOSSAMER_INLINE void multiply(SkinnyRing<Traits>& ring, int begin, int end) {
  float sums[Traits::kTokens / 2];
  uint32_t before = 0;
  for (int k = begin; k < end; ++k, ring.next()) {
    hopper::barrier_wait(ring.full(), ring.parity);
    hopper::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * Traits::kBoxes; ++i) {  // 32 bytes along k
      const uint64_t weight = hopper::descriptor(ring.weight(i / 4)) + 2 * (i % 4);
      const uint64_t x = hopper::descriptor(ring.x(i / 4)) + 2 * (i % 4);
      hopper::SkinnyWgmma<typename Traits::Input, Traits::kTokens>::multiply(sums, weight, x, k > begin || i > 0);
    }
    hopper::wgmma_commit();
    if (k > begin) {
      hopper::wgmma_wait<1>();
      if (threadIdx.x == 0) barrier_arrive(before);
    }
    before = ring.empty();
  }
  hopper::wgmma_wait<0>();
  if (threadIdx.x == 0) barrier_arrive(before);
#pragma unroll
  for (int i = 0; i < Traits::kTokens / 8; ++i) {
    keep_sums(ring.shared + Traits::kSums + (i * 128 + threadIdx.x) * 16, sums + 4 * i);
  }
}

// Results of a thread's rows of a tile. sums: of two rows of x (8 i and on) and two of weights: see wgmma.cuh.
template <class T>
struct SkinnyEpilogue {
  const SkinnyWork& w;
  int row, next;  // of results; the second one, which a thread has not where gate and up make one
  float bias, next_bias;

  __device__ __forceinline__ SkinnyEpilogue(const SkinnyWork& w, int tile) : w(w) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32 / 4;
    row = w.gated ? tile * 32 + warp * 8 + lane : tile * 64 + warp * 16 + lane;
    next = w.gated ? row + w.n : row + 8;
    bias = bias_at(row, row < w.n);
    next_bias = bias_at(next, w.gated ? row < w.n : next < w.n);
  }
  __device__ __forceinline__ float bias_at(int at, bool inside) const {
    return w.bias && inside ? wide(static_cast<const T*>(w.bias)[at]) : 0.0f;
  }
  __device__ __forceinline__ void store(int token, float first, float second) const {
    if (token >= w.m) return;
    T* out = static_cast<T*>(w.out) + static_cast<int64_t>(token) * w.n;
    const float value = activated_by(w.activation, first + bias);
    second += next_bias;
    if (w.gated) {
      if (row < w.n) out[row] = static_cast<T>(value * second);
    } else {
      if (row < w.n) out[row] = static_cast<T>(value);
      if (next < w.n) out[next] = static_cast<T>(activated_by(w.activation, second));
    }
  }
  __device__ __forceinline__ void operator()(int i, const float4& sums) const {
    const int token = 8 * i + 2 * (threadIdx.x % 4);
    store(token, sums.x, sums.z);
    store(token + 1, sums.y, sums.w);
  }
};

// What the CTAs of a cluster have left, added up in their order and finished: every `ctas`-th 8 rows of x by each.
template <class Traits>
GOSSAMER_INLINE void finish(const SkinnyWork& w, uint32_t shared, int tile, int rank, int ctas) {
  const SkinnyEpilogue<typename Traits::Input> store(w, tile);
  for (int i = rank; i < Traits::kTokens / 8; i += ctas) {
    const uint32_t from = shared + Traits::kSums + (i * 128 + threadIdx.x) * 16;
    if (ctas == 1) {
      store(i, kept_sums(from));
      continue;
    }
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int r = 0; r < ctas; ++r) {
      const float4 more = kept_sums(from, r);
      total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
    }
    store(i, total);
  }
}

template <class Traits>
GOSSAMER_INLINE void multiply_all(const SkinnyWork& w, uint32_t shared, const SkinnyShare& share) {
  SkinnyRing<Traits> ring(shared);
  for (int tile = share.first; tile < w.tiles; tile += share.stride) {
    multiply<Traits>(ring, share.begin, share.end);
    if (share.ctas == 1) finish<Traits>(w, shared, tile, 0, 1);
  }
}

#endif

template <class Traits>
__global__ void __launch_bounds__(Traits::kThreads, 2) skinny_kernel(const __grid_constant__ SkinnyWork w) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = hopper::shared_offset(memory);
  const SkinnyShare share(w);
  let_next_kernel_begin();
  if (threadIdx.x == 0) SkinnyRing<Traits>(shared).prepare();
  if (threadIdx.x == Traits::kConsumers) hopper::prefetch_map(w.weight);
  if (threadIdx.x == Traits::kConsumers + 32) hopper::prefetch_map(w.x);
  __syncthreads();
  if (threadIdx.x < Traits::kConsumers) {
    multiply_all<Traits>(w, shared, share);
  } else if (threadIdx.x == Traits::kConsumers) {
    copy_weights<Traits>(w, shared, share);
  } else if (threadIdx.x == Traits::kConsumers + 32) {
    copy_x<Traits>(w, shared, share);
  }
  if (share.ctas == 1) return;
  __syncwarp();
  hopper::cluster_sync();
  if (threadIdx.x < Traits::kConsumers) finish<Traits>(w, shared, share.first, share.rank, share.ctas);
  __syncwarp();
  hopper::cluster_sync();  // or else a CTA could end while another one still reads its memory
#endif
}

}  // namespace gossamer::cuda
