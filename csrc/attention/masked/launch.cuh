// The launch of the masked attention kernel, for the files that hold its instances.
#pragma once

#include "attention/masked/kernel.cuh"
#include "gossamer/cuda/launch.h"

namespace gossamer {

// What a kernel of this head_dim is launched with.
struct MaskedLaunch {
  cuda::MaskedWork work;
  int batch, kv_heads, tile_q, tile_k, multiprocessors;
  int64_t tiles;  // of the map
  DType dtype;
  cudaStream_t stream;

  int64_t ctas() const { return int64_t{work.items} * work.replicas; }
  bool cut() const { return work.slots > 0; }
  // Whole ones, of as many tiles as lie in a work item, in the mean.
  bool short_rows() const { return !cut() && tiles <= int64_t{cuda::kKnownTiles} * work.items; }
};
// Throw for tiles that there is no kernel for.
void launch_masked_64(const MaskedLaunch& launch);
void launch_masked_128(const MaskedLaunch& launch);

// Maps for boxes of tile_q or tile_k rows; nothing before sm_90.
cuda::TensorMaps tensor_maps(const MaskedLaunch& launch, int head_dim);

template <class Traits, bool kBent, bool kCut>
void launch_kernel(const MaskedLaunch& launch) {
  constexpr auto kernel = cuda::masked_kernel<Traits, kBent, kCut>;
  constexpr int kDefaultShared = 48 << 10;  // what a kernel gets without asking
  if constexpr (Traits::kSharedBytes > kDefaultShared) {
    static cuda::OncePerDevice asked;  // asking takes 0.5 us
    asked([] { cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes); });
  }
  const cuda::TensorMaps maps = tensor_maps(launch, Traits::D);
  const int ctas = static_cast<int>(launch.ctas());
  kernel<<<ctas, Traits::kThreads, Traits::kSharedBytes, launch.stream>>>(launch.work, maps);
  const cudaError_t failed = cudaGetLastError();
  STD_TORCH_CHECK(failed == cudaSuccess, "masked_attention: ", cudaGetErrorString(failed));
}

// Of whole rows, scores not bent.
template <class Traits>
void launch_plain(const MaskedLaunch& launch) {
  launch_kernel<Traits, false, false>(launch);
}

// Of all.
template <class Traits>
void launch_masked(const MaskedLaunch& launch) {
  if (launch.work.bent) return launch_kernel<Traits, true, true>(launch);
  if (launch.cut()) return launch_kernel<Traits, false, true>(launch);
  launch_plain<Traits>(launch);
}

}  // namespace gossamer
