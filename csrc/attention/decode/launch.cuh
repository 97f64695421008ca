// What all launches of decode attention have in common.
#pragma once

#include <algorithm>

#include "attention/decode/call.h"
#include "attention/decode/merge.cuh"
#include "gossamer/cuda/launch.h"

namespace gossamer::cuda {

constexpr int kLeastUnits = 2;  // of a CTA: fewer are not worth the merging

constexpr int aligned_up(int x) { return (x + 127) / 128 * 128; }

// Offsets of blocks are counted in units, in 32 bits.
inline void check_reach(const DecodeParams& w) {
  constexpr int64_t kReach = int64_t{kOffsetUnit} << 32;              // 64 GiB
  const auto span = [&](int64_t block_stride, int64_t head_stride) {  // from the first block of a pool to the last
    return (w.main.num_blocks - 1) * block_stride + (w.kv_heads - 1) * head_stride;
  };
  STD_TORCH_CHECK(span(w.main.k_block_stride, w.main.k_head_stride) < kReach &&
                      span(w.main.v_block_stride, w.main.v_head_stride) < kReach,
                  "decode_attention: k_blocks or v_blocks span more than 64 GiB");
}

inline int64_t items_of(const DecodeParams& w, int rows) {
  return int64_t{w.sequences} * w.kv_heads * ((w.q_len * w.group + rows - 1) / rows);
}

// How the work is cut for CTAs of `warps`, `per_sm` of them at a time on an SM, and items of `rows`; `memory` is what
// they write in between.
template <class Piece>
Cut make_cut(const DecodeCall& call, DecodeParams& w, int rows, int warps, int per_sm, Tensor& memory) {
  Cut cut{};
  cut.tiles = (w.q_len * w.group + rows - 1) / rows;
  cut.ctas = device_attribute(cudaDevAttrMultiProcessorCount) * per_sm;
  cut.warps = warps;
  cut.least = kLeastUnits;
  cut.factor = w.softcap > 0.0f ? w.scale / w.softcap : w.scale * kLog2e;
  cut.by_tiles = IntDivider(cut.tiles);
  cut.by_ctas = IntDivider(cut.ctas);
  cut.by_warps = IntDivider(cut.warps);
  cut.by_group = IntDivider(w.group);
  cut.by_page = IntDivider(w.page_blocks);
  // Units are counted in 32 bits: a longer sequence would be a wrong one.
  const int64_t items = items_of(w, rows);
  w.max_blocks = static_cast<int>(std::min<int64_t>(w.max_blocks, ((int64_t{1} << 30) - 1) / items - 2 * warps));
  const int64_t floats = int64_t{2} * cut.ctas * Piece::kFloats;
  memory = empty_contiguous(call.q, {4 * cut.ctas + floats}, aoti_torch_dtype_float32());  // counters, then results
  cut.arrivals = static_cast<uint64_t*>(memory.mutable_data_ptr());
  cut.partials = static_cast<float*>(memory.mutable_data_ptr()) + 4 * cut.ctas;
  cut.ticket = next_ticket();
  return cut;
}

inline void check_launched() {
  const cudaError_t failed = cudaGetLastError();
  STD_TORCH_CHECK(failed == cudaSuccess, "decode_attention: ", cudaGetErrorString(failed));
}

}  // namespace gossamer::cuda
