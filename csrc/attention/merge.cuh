// What the warps of a CTA, and the CTAs of an item, have seen of it: merged and written out.
#pragma once

#include "attention/plan.cuh"
#include "attention/softmax.cuh"

namespace gossamer::cuda {

// A weighted sum of values of one channel, with the maximum and the sum of its weights.
struct Partial {
  float top = kNothing, sum = 0.0f, out = 0.0f;

  __device__ __forceinline__ void add(float other_top, float other_sum, float other_out) {
    const float high = fmaxf(top, other_top), keep = exp2_approx(top - high), take = exp2_approx(other_top - high);
    top = high;
    sum = sum * keep + other_sum * take;
    out = out * keep + other_out * take;
  }
};

// Partial results of Rows query rows: [Rows][D] sums, then [Rows] maxima, then [Rows] sums of weights.
template <int D, int Rows>
struct PartialRows {
  static constexpr int kFloats = Rows * (D + 2);
  float* base;

  __device__ __forceinline__ float& out(int row, int channel) const { return base[row * D + channel]; }
  __device__ __forceinline__ float& top(int row) const { return base[Rows * D + row]; }
  __device__ __forceinline__ float& sum(int row) const { return base[Rows * (D + 1) + row]; }
};

template <int D, int Sets>
GOSSAMER_INLINE void store_state(State<D, Sets>& state, int lane, const PartialRows<D, 4 * Sets>& to) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int set = 0; set < Sets; ++set) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = state.sum[set][i];
#pragma unroll
      for (int d = 1; d <= 8; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
      if (lane % 16 == 0) {
        to.top(4 * set + 2 * i + lane / 16) = state.top[set][i];
        to.sum(4 * set + 2 * i + lane / 16) = sum;
      }
    }
  }
#pragma unroll
  for (int n = 0; n < State<D, Sets>::kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (2 * t < 4 * Sets) to.out(2 * t + i % 2, 16 * n + 8 * (i / 2) + g) = state.out[n][i];
    }
  }
}

// One channel of one row to its place in the output.
template <class T>
GOSSAMER_INLINE void write_result(const Partial& p, T* out, float* lse, int channel) {
  // Nothing seen: zero and -inf. A NaN anywhere stays a NaN.
  out[channel] = static_cast<T>(p.sum == 0.0f ? 0.0f : p.out / p.sum);
  if (channel == 0) *lse = p.sum == 0.0f ? -INFINITY : (p.top + log2f(p.sum)) / kLog2e;
}

// The pieces of an item that begins in CTA `begin` and ends in `end`; `shared_begin`: another item comes before it
// in CTA `begin`.
struct Pieces {
  int begin, end;
  bool shared_begin;

  __device__ __forceinline__ Pieces(int item_begin, int room, int share)
      : begin(item_begin / share), end((item_begin + room - 1) / share), shared_begin(item_begin % share != 0) {}
  __device__ __forceinline__ bool whole() const { return begin == end; }
  __device__ __forceinline__ int slot(int cta) const { return 2 * cta + (cta == begin && shared_begin); }
};

// An item: which rows of which sequence and head.
template <int Rows>
struct Item {
  int sequence, head, row_begin, rows;

  Item() = default;
  __device__ __forceinline__ Item(const DecodeAttention& w, int tiles, int sequence, int number)
      : sequence(sequence), head(number / tiles), row_begin(number % tiles * Rows) {
    rows = min(Rows, w.q_len * w.group - row_begin);
  }
  __device__ __forceinline__ int query(const DecodeAttention& w, int row) const { return (row_begin + row) / w.group; }
  __device__ __forceinline__ int query_head(const DecodeAttention& w, int row) const {
    return head * w.group + (row_begin + row) % w.group;
  }
  template <class T>
  __device__ __forceinline__ const T* input(const DecodeAttention& w, int row) const {
    return static_cast<const T*>(w.q) + sequence * w.q_seq_stride + query(w, row) * w.q_token_stride +
           query_head(w, row) * w.q_head_stride;
  }
  // One channel of one row to its place in the output. Nothing seen: zero and -inf. A NaN stays a NaN.
  template <class T>
  __device__ __forceinline__ void write(const DecodeAttention& w, const Partial& p, int row, int channel) const {
    const int64_t at =
        (static_cast<int64_t>(sequence) * w.q_len + query(w, row)) * (w.kv_heads * w.group) + query_head(w, row);
    static_cast<T*>(w.out)[at * w.head_dim + channel] = static_cast<T>(p.sum == 0.0f ? 0.0f : p.out / p.sum);
    if (channel == 0) w.lse[at] = p.sum == 0.0f ? -INFINITY : (p.top + log2f(p.sum)) / kLog2e;
  }
};

// ---- items that several CTAs have a part of --------------------------------------------------

constexpr int kMergeThreads = 512;

// blockIdx.x: an item, if there are fewer of them than CTAs; else j for the item that crosses from piece j to piece
// j + 1, if it begins in piece j. blockIdx.y: a row of it, or 0 for all.
template <class T, int D, int Rows>
__global__ void __launch_bounds__(kMergeThreads, 1)
    merge_kernel(const __grid_constant__ DecodeAttention w, const __grid_constant__ Cut cut) {
  constexpr int kGroups = kMergeThreads / D;  // of threads; each takes every so manieth piece
  constexpr int kAtOnce = 8;                  // loads in flight
  __shared__ Partial merged[kMergeThreads];
  const int items = w.kv_heads * cut.tiles, j = blockIdx.x;
  const bool by_item = w.sequences * items < cut.ctas;
  const Place place =
      by_item ? sequence_place(w, cut, j / items) : find_place(w, cut, [&](int share) { return (j + 1) * share - 1; });
  if (!by_item && (j + 1) * place.share >= place.total) return;
  const int room = room_of(cut, seen_blocks(w, w.seq_lens[place.sequence]).units(), place.equal);
  const int number = by_item ? j % items : ((j + 1) * place.share - 1 - place.before) / room;
  const Pieces pieces(place.before + number * room, room, place.share);
  if (pieces.whole() || (!by_item && pieces.begin != j)) return;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const Item<Rows> item(w, cut.tiles, place.sequence, number);
  const int channel = threadIdx.x % D, group = threadIdx.x / D;
  for (int row = blockIdx.y; row < item.rows; row += gridDim.y) {
    Partial mine;
    for (int cta = pieces.begin + group; cta <= pieces.end; cta += kAtOnce * kGroups) {
      float top[kAtOnce], sum[kAtOnce], out[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int from = min(cta + i * kGroups, pieces.end);
        const PartialRows<D, Rows> p{cut.partials +
                                     static_cast<int64_t>(pieces.slot(from)) * PartialRows<D, Rows>::kFloats};
        top[i] = __ldcg(&p.top(row)), sum[i] = __ldcg(&p.sum(row)), out[i] = __ldcg(&p.out(row, channel));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (cta + i * kGroups <= pieces.end) mine.add(top[i], sum[i], out[i]);
      }
    }
    merged[threadIdx.x] = mine;
    __syncthreads();
    if (group == 0) {
      for (int i = 1; i < kGroups; ++i) {
        const Partial& other = merged[i * D + channel];
        mine.add(other.top, other.sum, other.out);
      }
      item.template write<T>(w, mine, row, channel);
    }
    __syncthreads();
  }
}

}  // namespace gossamer::cuda
