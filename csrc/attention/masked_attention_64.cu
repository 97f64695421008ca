// Kernels for head_dim 64. Stages and CTAs of an SM as measured on an H200: what holds more CTAs is behind.
#include "attention/masked_launch.cuh"

namespace gossamer {
namespace {

template <class T, int TileQ, int TileK, int Stages, int Ctas, bool Held = true>
using Kernel = cuda::MaskedTraits<T, 64, TileQ, TileK, Stages, Ctas, Held>;

template <class T>
void launch_tiles(const MaskedLaunch& launch) {
  const int tile_q = launch.tile_q, tile_k = launch.tile_k;
  if (tile_q == 32 && tile_k == 32) return launch_fitting<Kernel<T, 32, 32, 3, 8>, Kernel<T, 32, 32, 2, 10>>(launch);
  if (tile_q == 64 && tile_k == 32) {
    if (launch.work.items * launch.work.replicas > 5 * launch.multiprocessors) {
      // Six are a little slower, but not than a second round of a few.
      return launch_fitting<Kernel<T, 64, 32, 3, 6, false>, Kernel<T, 64, 32, 4, 5>>(launch);
    }
    return launch_fitting<Kernel<T, 64, 32, 4, 4>, Kernel<T, 64, 32, 4, 5>>(launch);
  }
  if (tile_q == 64 && tile_k == 64) return launch_fitting<Kernel<T, 64, 64, 3, 3>, Kernel<T, 64, 64, 2, 4>>(launch);
  if (tile_q == 128 && tile_k == 64) return launch_masked<Kernel<T, 128, 64, 3, 2>>(launch);
  STD_TORCH_CHECK(false, "masked_attention: no CUDA kernel for tiles of ", tile_q, " by ", tile_k);
}

}  // namespace

void launch_masked_64(const MaskedLaunch& launch) {
  launch.dtype == DType::f16 ? launch_tiles<__half>(launch) : launch_tiles<__nv_bfloat16>(launch);
}

}  // namespace gossamer
