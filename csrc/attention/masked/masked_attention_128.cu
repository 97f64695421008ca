// Kernels for head_dim 128. Stages and CTAs of an SM as measured on an H200.
#include "attention/masked/launch.cuh"

namespace gossamer {
namespace {

template <class T, int TileQ, int TileK, int Stages, int Ctas>
using Kernel = cuda::MaskedTraits<T, 128, TileQ, TileK, TileK, Stages, Ctas, true>;

template <class T>
void launch_tiles(const MaskedLaunch& launch) {
  const int tile_q = launch.tile_q, tile_k = launch.tile_k;
  if (tile_q == 32 && tile_k == 32) return launch_masked<Kernel<T, 32, 32, 2, 6>>(launch);
  if (tile_q == 64 && tile_k == 32) return launch_masked<Kernel<T, 64, 32, 3, 3>>(launch);
  if (tile_q == 64 && tile_k == 64) return launch_masked<Kernel<T, 64, 64, 2, 2>>(launch);
  if (tile_q == 128 && tile_k == 64) return launch_masked<Kernel<T, 128, 64, 2, 1>>(launch);
  STD_TORCH_CHECK(false, "masked_attention: no CUDA kernel for tiles of ", tile_q, " by ", tile_k);
}

}  // namespace

void launch_masked_128(const MaskedLaunch& launch) {
  launch.dtype == DType::f16 ? launch_tiles<__half>(launch) : launch_tiles<__nv_bfloat16>(launch);
}

}  // namespace gossamer
