// Launches codes_kernel.cuh for one head dimension; include from codes_*.cu alone.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "attention/decode/codes.h"
#include "attention/decode/codes_kernel.cuh"
#include "attention/decode/launch.cuh"

namespace gossamer {
namespace {

using cuda::aligned_up;
using cuda::CodesLayout;

constexpr int kWantedStages = 3, kFewWarps = 8;

template <class Traits>
CodesLayout codes_layout(const DecodeParams& w, int stages) {
  CodesLayout s{};
  const int queries = Traits::D / 8 * Traits::Sets * 128;
  s.raw_queries = queries;
  s.numbers = 2 * queries;
  s.warp_begin = aligned_up(s.numbers + static_cast<int>(sizeof(cuda::RowNumbers)));
  s.rows = std::min(Traits::Rows, w.q_len * w.group);
  s.stages = stages;
  s.stage = aligned_up(w.main.k.block_bytes + w.main.v.block_bytes);
  s.ring = aligned_up(s.rows * (Traits::D + 2) * static_cast<int>(sizeof(float)));
  s.barriers = s.ring + stages * s.stage;
  s.together = w.main.v_blocks == w.main.k_blocks + w.main.k.block_bytes &&
               w.main.k_block_stride == w.main.v_block_stride && w.main.k_head_stride == w.main.v_head_stride;
  s.dev = getenv("DEV_FLAGS") ? atoi(getenv("DEV_FLAGS")) : 0;
  s.warp_bytes = aligned_up(s.barriers + 16 * stages);
  return s;
}

uint32_t half_pair(int number) { return code_tiles::pair(code_tiles::half_bits(static_cast<float>(number))); }

template <int D>
cuda::TileKind tile_kind(const KvFormat& f) {
  if (FixedTiles<D, Values::i8, 8>::matches(f)) return cuda::TileKind::i8;
  if (FixedTiles<D, Values::i4, 4>::matches(f)) return cuda::TileKind::i4;
  if (FixedTiles<D, Values::fp8, 8>::matches(f)) return cuda::TileKind::fp8;
  if constexpr (D % 64 == 0) {
    if (FixedTiles<D, Values::profile, 8, 4, 4, 4, 4, 4, 2, 2>::matches(f)) return cuda::TileKind::p84444422;
    if (FixedTiles<D, Values::profile, 8, 4, 4, 2, 2, 2, 2, 0>::matches(f)) return cuda::TileKind::p84422220;
    if (FixedTiles<D, Values::profile, 4, 4, 3, 3, 3, 3, 2, 2>::matches(f)) return cuda::TileKind::p44333322;
  }
  return cuda::TileKind::any;
}

template <class Traits>
void launch_kernel(const DecodeCall& call) {
  DecodeParams w = call.work;
  cuda::check_reach(w);
  cuda::CodesParams codes{};
  codes.k = code_table(w.main.k);
  codes.v = code_table(w.main.v);
  codes.k_tiles = tile_kind<Traits::D>(w.main.k);
  codes.v_tiles = tile_kind<Traits::D>(w.main.v);
  codes.k_middle = w.main.k.values == Values::profile ? 0.5f : 0.0f;
  codes.v_middle = w.main.v.values == Values::profile ? 0.5f : 0.0f;
  codes.k_half = half_pair(1 << (w.main.k.bits - 1));
  codes.v_half = half_pair(1 << (w.main.v.bits - 1));
  // Less what the kernel has of its own.
  const int room = cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 2048;
  const auto fitting = [&](const CodesLayout& s) { return std::min((room - s.warp_begin) / s.warp_bytes, Traits::kMaxWarps); };
  const char* forced_stages = getenv("DEV_STAGES"); const char* forced_warps = getenv("DEV_WARPS");
  if (forced_stages) {
    CodesLayout shared = codes_layout<Traits>(w, atoi(forced_stages));
    int warps = fitting(shared); if (forced_warps) warps = std::min(warps, atoi(forced_warps));
    static int said = 0; if (!said++) printf("stages %d warps %d\n", shared.stages, warps);
    shared.total = shared.warp_begin + warps * shared.warp_bytes;
    const auto kernel = cuda::codes_kernel<Traits>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared.total);
    Tensor memory;
    const cuda::Cut cut = cuda::make_cut<cuda::PartialRows<Traits::D, Traits::Rows>>(call, w, Traits::Rows, warps, memory);
    kernel<<<cut.ctas, warps * 32, shared.total, cuda::current_stream(call.q)>>>(w, cut, codes, shared);
    cuda::check_launched();
    return;
  }
  CodesLayout shared = codes_layout<Traits>(w, kWantedStages);
  for (int stages = kWantedStages - 1; stages > 0 && fitting(shared) < Traits::kMaxWarps; --stages) {
    const CodesLayout fewer = codes_layout<Traits>(w, stages);
    if (stages == 1 && fitting(shared) >= std::min(kFewWarps, Traits::kMaxWarps)) break;  // two stages for fewer warps
    shared = fewer;
  }
  const int warps = fitting(shared);
  STD_TORCH_CHECK(warps > 1, "decode_attention: a block does not fit into shared memory");
  shared.total = shared.warp_begin + warps * shared.warp_bytes;
  const auto kernel = cuda::codes_kernel<Traits>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared.total);
  Tensor memory;
  const cuda::Cut cut = cuda::make_cut<cuda::PartialRows<Traits::D, Traits::Rows>>(call, w, Traits::Rows, warps, memory);
  kernel<<<cut.ctas, warps * 32, shared.total, cuda::current_stream(call.q)>>>(w, cut, codes, shared);
  cuda::check_launched();
}

}  // namespace

template <int D>
void launch_codes(const DecodeCall& call) {
  if (call.work.q_len * call.work.group <= 8) return launch_kernel<cuda::CodesTraits<D, 1>>(call);
  launch_kernel<cuda::CodesTraits<D, 2>>(call);
}

}  // namespace gossamer
