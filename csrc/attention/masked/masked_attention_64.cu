// Kernels for head_dim 64. Parts, stages and CTAs of an SM as measured on an H200; the numbers are microseconds.
#include "attention/masked/launch.cuh"

namespace gossamer {
namespace {

template <class T, int TileQ, int TileK, int Part, int Stages, int Ctas, bool Held = true>
using Kernel = cuda::MaskedTraits<T, 64, TileQ, TileK, Part, Stages, Ctas, Held>;

template <class T>
void launch_tiles(const MaskedLaunch& launch) {
  const int tile_q = launch.tile_q, tile_k = launch.tile_k;
  const int64_t ctas = launch.ctas(), sms = launch.multiprocessors;
  if (tile_q == 32 && tile_k == 32) {
    if (ctas <= 12 * sms) return launch_masked<Kernel<T, 32, 32, 32, 3, 7>>(launch);
    return launch_masked<Kernel<T, 32, 32, 32, 2, 10>>(launch);
  }
  if (tile_q == 64 && tile_k == 32) {
    // All at once where a second round would be short: a band at batch 1 and 4,096 tokens takes 16.3, and else 17.9;
    // long rows take up to 45% longer.
    const bool at_once = ctas > 4 * sms && ctas <= 6 * sms && launch.short_rows() && !launch.work.bent;
    if (at_once) return launch_plain<Kernel<T, 64, 32, 32, 3, 6, false>>(launch);
    return launch_masked<Kernel<T, 64, 32, 32, 4, 4>>(launch);
  }
  if (tile_q == 64 && tile_k == 64) {
    // Parts of 32 keys skip more: 257 and not 298 for Longformer at batch 16, 4,096 tokens. But where few CTAs have
    // much to do, 64 keys are more to do at a time: 92 and not 100 for a causal mask at batch 1.
    if (!launch.short_rows() && ctas <= 8 * sms) return launch_masked<Kernel<T, 64, 64, 64, 3, 3>>(launch);
    return launch_masked<Kernel<T, 64, 64, 32, 2, 4>>(launch);
  }
  if (tile_q == 128 && tile_k == 64) return launch_masked<Kernel<T, 128, 64, 64, 3, 2>>(launch);
  STD_TORCH_CHECK(false, "masked_attention: no CUDA kernel for tiles of ", tile_q, " by ", tile_k);
}

}  // namespace

void launch_masked_64(const MaskedLaunch& launch) {
  launch.dtype == DType::f16 ? launch_tiles<__half>(launch) : launch_tiles<__nv_bfloat16>(launch);
}

}  // namespace gossamer
