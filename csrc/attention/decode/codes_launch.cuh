// Launches codes_kernel.cuh for one head dimension; include from codes_*.cu alone.
#pragma once

#include "attention/decode/codes.h"
#include "attention/decode/codes_kernel.cuh"
#include "attention/decode/launch.cuh"

namespace gossamer {
namespace {

using cuda::aligned_up;
using cuda::CodesLayout;

template <class Traits>
CodesLayout codes_layout(const DecodeParams& w) {
  CodesLayout s{};
  const int queries = Traits::D / 8 * Traits::Sets * 128;
  s.raw_queries = queries;
  s.numbers = 2 * queries;
  s.warp_begin = aligned_up(s.numbers + static_cast<int>(sizeof(cuda::RowNumbers)));
  s.rows = std::min(Traits::Rows, w.q_len * w.group);
  s.k_stage = aligned_up(s.rows * (Traits::D + 2) * static_cast<int>(sizeof(float)));
  s.v_stage = s.k_stage + aligned_up(w.main.k.block_bytes);
  s.barriers = s.v_stage + aligned_up(w.main.v.block_bytes);
  s.warp_bytes = aligned_up(s.barriers + 16);
  return s;
}

uint32_t half_pair(int number) { return code_tiles::pair(code_tiles::half_bits(static_cast<float>(number))); }

// Shared memory that a CTA takes beyond its layout: the kernel's own, and what the driver reserves.
constexpr int kOwnShared = 3072;

// Beginning and ending an item takes about as long as ten blocks. Where there are many, which are short as a rule, an
// SM works on several at a time, with fewer warps each: 256 sequences of 1,280 tokens (H200, coded rows of 23%) take
// 239, 163 and 136 us with 1, 2 and 4 CTAs on an SM, 32 of 8,192 take 90, 86 and 93, and 8 of 32,768 83, 88 and 94.
int ctas_per_sm(const DecodeParams& w, int rows) {
  const int64_t items = cuda::items_of(w, rows), sms = cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  return items >= 3 * sms ? 4 : 4 * items >= 5 * sms ? 2 : 1;
}

template <class Traits>
void launch_kernel(const DecodeCall& call) {
  constexpr int D = Traits::D;
  DecodeParams w = call.work;
  cuda::check_reach(w);
  cuda::CodesParams<D> codes{};
  codes.k = Traits::Formats::KTiles::template table<D>(w.main.k);
  codes.v = Traits::Formats::VTiles::template table<D>(w.main.v);
  codes.k_middle = w.main.k.values == Values::profile ? 0.5f : 0.0f;
  codes.v_middle = w.main.v.values == Values::profile;
  codes.k_half = half_pair(1 << (w.main.k.bits - 1));
  codes.v_half = half_pair(1 << (w.main.v.bits - 1));
  const int per_sm = ctas_per_sm(w, Traits::Rows);
  const int room = cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / per_sm - kOwnShared;
  CodesLayout shared = codes_layout<Traits>(w);
  const int warps = std::min((room - shared.warp_begin) / shared.warp_bytes, Traits::kMaxWarps / per_sm);
  STD_TORCH_CHECK(warps > 0, "decode_attention: a block does not fit into shared memory");
  shared.total = shared.warp_begin + warps * shared.warp_bytes;
  const auto kernel = cuda::codes_kernel<Traits>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared.total);
  Tensor memory;
  const cuda::Cut cut =
      cuda::make_cut<cuda::PartialRows<D, Traits::Rows>>(call, w, Traits::Rows, warps, per_sm, memory);
  kernel<<<cut.ctas, warps * 32, shared.total, cuda::current_stream(call.q)>>>(w, cut, codes, shared);
  cuda::check_launched();
}

// One of the formats that have kernels of their own; false if it is none of them.
template <int D, class KTiles, Scales k, class VTiles, Scales v>
bool launch_if(const DecodeCall& call) {
  const KvFormat &kf = call.work.main.k, &vf = call.work.main.v;
  if (kf.scales != k || vf.scales != v || !KTiles::matches(kf) || !VTiles::matches(vf)) return false;
  launch_kernel<cuda::CodesTraits<D, 1, cuda::FixedFormats<KTiles, k, VTiles, v>>>(call);
  return true;
}

template <int D>
bool launch_fixed(const DecodeCall& call) {
  using Int8 = FixedTiles<D, Values::i8, 8>;
  using Int4 = FixedTiles<D, Values::i4, 4>;
  using Float8 = FixedTiles<D, Values::fp8, 8>;
  if (launch_if<D, Int8, Scales::row, Int8, Scales::row>(call)) return true;
  if (launch_if<D, Int4, Scales::row, Int4, Scales::row>(call)) return true;
  if constexpr (D % 32 == 0) {
    if (launch_if<D, Int4, Scales::channel, Int4, Scales::group>(call)) return true;  // KIVI
  }
  if (launch_if<D, Float8, Scales::row, Float8, Scales::row>(call)) return true;
  if constexpr (D % 64 == 0) {
    // The caches of coded rows that docs/kv-cache.md recommends, by eighths of a row.
    using K23 = FixedTiles<D, Values::profile, 8, 4, 4, 4, 4, 4, 2, 2>;
    using K20 = FixedTiles<D, Values::profile, 8, 4, 4, 2, 2, 2, 2, 0>;
    using K14 = FixedTiles<D, Values::profile, 4, 3, 3, 2, 2, 2, 0, 0>;
    using V20 = FixedTiles<D, Values::profile, 4, 4, 3, 3, 3, 3, 2, 2>;
    using V14 = FixedTiles<D, Values::profile, 4, 2, 2, 2, 2, 2, 2, 0>;
    if (launch_if<D, K23, Scales::row, V20, Scales::row>(call)) return true;
    if (launch_if<D, K20, Scales::row, V20, Scales::row>(call)) return true;
    if (launch_if<D, K14, Scales::row, V14, Scales::row>(call)) return true;
  }
  return false;
}

}  // namespace

template <int D>
void launch_codes(const DecodeCall& call) {
  using cuda::AnyFormats;
  using cuda::CodesTraits;
  if (call.work.q_len * call.work.group > 8) return launch_kernel<CodesTraits<D, 2, AnyFormats>>(call);
  if (!launch_fixed<D>(call)) launch_kernel<CodesTraits<D, 1, AnyFormats>>(call);
}

}  // namespace gossamer
