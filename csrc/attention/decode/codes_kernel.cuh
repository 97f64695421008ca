// Decode attention of one CTA over dense codes: its share of the units of a batch, item by item.
#pragma once

#include "attention/decode/codes_warp.cuh"
#include "attention/decode/tasks.cuh"

namespace gossamer::cuda {

// Sets: of 8 query rows.
template <int D_, int Sets_, class Formats_>
struct CodesTraits {
  using Formats = Formats_;
  static constexpr int D = D_, Sets = Sets_, Rows = 8 * Sets_;
  // As many as sums in registers leave room for.
  static constexpr int kMaxWarps = D * Sets <= 128 ? 16 : D * Sets <= 256 ? 12 : 8;
};

// Elements 2 i and 2 i + 1 of a row of q as they are, and as float32.
GOSSAMER_INLINE float2 as_floats(uint32_t pair, bool bf16) {
  if (bf16) return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

// The queries of an item to shared memory, a row to a warp: as operands in float16, relative to a power of two, and in
// their own type; [tile of 8 channels][set][row % 8][pair].
template <class Traits>
GOSSAMER_INLINE void store_queries(const DecodeParams& w, const Cut& cut, const CodesParams<Traits::D>& codes,
                                   const CodesLayout& shared, const Item<Traits::Rows>& item, uint8_t* memory) {
  constexpr int D = Traits::D, kSteps = (D / 2 + 31) / 32;
  auto& numbers = *reinterpret_cast<RowNumbers*>(memory + shared.numbers);
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < Traits::Rows; row += blockDim.x / 32) {
    uint32_t pairs[kSteps] = {};
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = i * 32 + lane;
      if (row < item.rows && at < D / 2) {
        pairs[i] = *reinterpret_cast<const uint32_t*>(item.template input<uint16_t>(w, cut, row) + 2 * at);
      }
      const float2 x = as_floats(pairs[i], w.bf16);
      most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
    }
#pragma unroll
    for (int d = 1; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    const uint32_t exponent = __float_as_uint(most) & 0x7f800000u;
    const bool usual = exponent > 0 && exponent < (253u << 23);
    const float unit = usual ? __uint_as_float(exponent) : 1.0f,
                by = usual ? __uint_as_float((254u << 23) - exponent) : 1.0f;
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = i * 32 + lane;
      const float2 x = as_floats(pairs[i], w.bf16);
      const uint32_t rounded = pack2<__half>(x.x * by, x.y * by);
      const int word = (at / 4 * Traits::Sets + row / 8) * 32 + row % 8 * 4 + at % 4;
      if (at < D / 2) {
        reinterpret_cast<uint32_t*>(memory)[word] = rounded;
        reinterpret_cast<uint32_t*>(memory + shared.raw_queries)[word] = pairs[i];
      }
      const float2 y = as_floats(rounded, false);
      if (codes.k_middle != 0.0f && at < D / 2 && codes.k.tiles[at / 4].mask != 0) total += y.x + y.y;
      if (Traits::Formats::k_scales(w) == Scales::group) {
        float part = y.x + y.y;
#pragma unroll
        for (int d = 1; d < 16; d *= 2) part += __shfl_xor_sync(~0u, part, d);
        if (lane % 16 == 0 && at / 16 < 8) numbers.group[at / 16][row] = part;
      }
    }
    if (codes.k_middle != 0.0f) {
#pragma unroll
      for (int d = 1; d < 32; d *= 2) total += __shfl_xor_sync(~0u, total, d);
    }
    if (lane == 0) numbers.unit[row] = unit, numbers.middle[row] = total * codes.k_middle;
  }
}

// As decode_kernel in kernel.cuh.
template <class Traits>
__global__ void __launch_bounds__(Traits::kMaxWarps * 32, 1)
    codes_kernel(const __grid_constant__ DecodeParams w, const __grid_constant__ Cut cut,
                 const __grid_constant__ CodesParams<Traits::D> codes, const __grid_constant__ CodesLayout shared) {
  using CtaTask = Task<Traits::Rows>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ RowLimits limits;
  __shared__ Step<Traits::Rows> steps[2];
  prefetch_inputs(w, cut);
  Place place = find_place(w, cut, blockIdx.x);
  int at = blockIdx.x * place.share;
  if (at >= place.stop()) return;
  CodesWarp<Traits> warp(w, cut, codes, shared, memory, limits);
  const auto result = [&](int i) {
    return WarpResult<Traits::D>{reinterpret_cast<float*>(memory + shared.warp_begin + i * shared.warp_bytes),
                                 shared.rows};
  };
  bool more = true, wrong = false;
#pragma unroll 1
  for (int count = 0;; ++count) {
    Step<Traits::Rows>& step = steps[count & 1];
    CtaTask task;
    if (more) {
      task = CtaTask(w, cut, place, at, place.stop());
      begin_task(warp, task);
      if (threadIdx.x == 0) step = {place, task, Pieces(task.item_begin, task.room, place.share)};
    }
    if (count > 0) {  // what this step needs comes while the one before is finished
      const Step<Traits::Rows>& done = steps[count & 1 ^ 1];
      const bool poisoned = __syncthreads_or(wrong);
      const auto of_warp = [&](int i, int row, int channel) {
        const WarpResult<Traits::D> p = result(i);
        return Partial{p.top(row), p.sum(row), p.out(row, channel)};
      };
      finish_task<Either16, Traits::D>(w, done.task, cut, done.pieces, poisoned, of_warp);
      if (!more) return;
      __syncthreads();
    }
    limits.set(w, cut, task.item, task.length);
    store_queries<Traits>(w, cut, codes, shared, task.item, memory);
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
      if (!step.pieces.whole()) step.pieces.arrivals(cut).open(cut.ticket);
    }
    warp.load_numbers();
    warp.values.clear();
    work_on_task(warp, step.task);
    if (warp.warp < step.task.busy(cut)) warp.store_results(result(warp.warp));
    wrong = warp.poisoned;
    more = step.next(w, cut, place, at);
  }
}

}  // namespace gossamer::cuda
