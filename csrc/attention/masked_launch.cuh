// The launch of the masked attention kernel, for the files that hold its instances.
#pragma once

#include "attention/masked_kernel.cuh"
#include "gossamer/cuda/launch.h"

namespace gossamer {

// Asked again for every call: that takes less than a microsecond, and there is nothing to keep.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

// What a kernel of this head_dim is launched with.
struct MaskedLaunch {
  cuda::MaskedWork work;
  int batch, kv_heads, tile_q, tile_k, multiprocessors;
  DType dtype;
  cudaStream_t stream;
};
// Throw for tiles that there is no kernel for.
void launch_masked_64(const MaskedLaunch& launch);
void launch_masked_128(const MaskedLaunch& launch);

// Maps for boxes of tile_q or tile_k rows; nothing before sm_90.
cuda::TensorMaps tensor_maps(const MaskedLaunch& launch, int head_dim);

template <class Traits>
void launch_masked(const MaskedLaunch& launch) {
  constexpr int kDefaultShared = 48 << 10;  // what a kernel gets without asking
  const auto kernel = launch.work.bent ? cuda::masked_kernel<Traits, true> : cuda::masked_kernel<Traits, false>;
  if (Traits::kSharedBytes > kDefaultShared) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  }
  const cuda::MaskedWork& w = launch.work;
  const cuda::TensorMaps maps = tensor_maps(launch, Traits::D);
  kernel<<<w.items * w.replicas, Traits::kThreads, Traits::kSharedBytes, launch.stream>>>(w, maps);
  const cudaError_t failed = cudaGetLastError();
  STD_TORCH_CHECK(failed == cudaSuccess, "masked_attention: ", cudaGetErrorString(failed));
}

// The first of these whose CTAs all run at the same time, else the last one. The first ones give a CTA more registers
// and stages, the last one suits many CTAs.
template <class Traits, class... Others>
void launch_fitting(const MaskedLaunch& launch) {
  if constexpr (sizeof...(Others) > 0) {
    const int64_t ctas = int64_t{launch.work.items} * launch.work.replicas;
    if (ctas > int64_t{launch.multiprocessors} * Traits::kCtas) return launch_fitting<Others...>(launch);
  }
  launch_masked<Traits>(launch);
}

}  // namespace gossamer
