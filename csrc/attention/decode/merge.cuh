// What the warps of a CTA, and the CTAs of an item, have seen of it: merged and written out.
#pragma once

#include "attention/decode/schedule.cuh"
#include "attention/decode/softmax.cuh"
#include "attention/shared/arrivals.cuh"
#include "attention/shared/mma.cuh"

namespace gossamer::cuda {

struct Either16;  // float16 or bfloat16: as DecodeParams says

// A weighted sum of values of one channel, with the maximum and the sum of its weights.
struct Partial {
  float top = kNothing, sum = 0.0f, out = 0.0f;

  // All at once: sums that wait for each other one by one would take N times as long.
  template <int N>
  __device__ __forceinline__ void add(const Partial (&others)[N]) {
    float high = top;
#pragma unroll
    for (int i = 0; i < N; ++i) high = fmaxf(high, others[i].top);
    const float keep = exp2_approx(top - high);
    top = high, sum *= keep, out *= keep;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float take = exp2_approx(others[i].top - high);
      sum += others[i].sum * take;
      out += others[i].out * take;
    }
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

// `channel`: the lane's, of 8.
template <int D, int Sets>
GOSSAMER_INLINE void store_state(State<D, Sets>& state, int lane, int channel, const PartialRows<D, 4 * Sets>& to) {
  const int t = lane % 4;
  __syncwarp();  // these results lie where other lanes have just read their columns
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
      if (2 * t < 4 * Sets) to.out(2 * t + i % 2, 16 * n + 8 * (i / 2) + channel) = state.out[n][i];
    }
  }
}

// The pieces of an item that begins in CTA `begin` and ends in `end`; `shared_begin`: another item comes before it
// in CTA `begin`.
struct Pieces {
  int begin, end;
  bool shared_begin;

  Pieces() = default;
  __device__ __forceinline__ Pieces(int item_begin, int room, int share)
      : begin(quotient(item_begin, share)), end(quotient(item_begin + room - 1, share)) {
    shared_begin = item_begin != begin * share;
  }
  __device__ __forceinline__ bool whole() const { return begin == end; }
  __device__ __forceinline__ int count() const { return end - begin + 1; }
  __device__ __forceinline__ int slot(int cta) const { return 2 * cta + (cta == begin && shared_begin); }
  __device__ __forceinline__ Arrivals arrivals(const Cut& cut) const { return {cut.arrivals + slot(begin)}; }
};

// An item: which rows of which sequence and head.
template <int Rows>
struct Item {
  int sequence, head, row_begin, rows;

  Item() = default;
  __device__ __forceinline__ Item(const DecodeParams& w, const Cut& cut, int sequence, int number)
      : sequence(sequence), head(cut.by_tiles(number)), row_begin(cut.by_tiles.modulo(number) * Rows) {
    rows = min(Rows, w.q_len * w.group - row_begin);
  }
  __device__ __forceinline__ int query(const Cut& cut, int row) const { return cut.by_group(row_begin + row); }
  __device__ __forceinline__ int query_head(const DecodeParams& w, const Cut& cut, int row) const {
    return head * w.group + cut.by_group.modulo(row_begin + row);
  }
  template <class T>
  __device__ __forceinline__ const T* input(const DecodeParams& w, const Cut& cut, int row) const {
    return static_cast<const T*>(w.q) + sequence * w.q_seq_stride + query(cut, row) * w.q_token_stride +
           query_head(w, cut, row) * w.q_head_stride;
  }
  // One channel of one row to its place in the output. Nothing seen: zero and -inf. A NaN stays a NaN.
  template <class T>
  __device__ __forceinline__ void write(const DecodeParams& w, const Cut& cut, const Partial& p, int row,
                                        int channel) const {
    const int64_t at =
        (static_cast<int64_t>(sequence) * w.q_len + query(cut, row)) * (w.kv_heads * w.group) + query_head(w, cut, row);
    const float x = p.sum == 0.0f ? 0.0f : __fdividef(p.out, p.sum);
    if constexpr (!std::is_same_v<T, Either16>) {
      static_cast<T*>(w.out)[at * w.head_dim + channel] = static_cast<T>(x);
    } else {
      const uint32_t two = w.bf16 ? pack2<__nv_bfloat16>(x, x) : pack2<__half>(x, x);
      static_cast<uint16_t*>(w.out)[at * w.head_dim + channel] = static_cast<uint16_t>(two);
    }
    if (channel == 0) w.lse[at] = p.sum == 0.0f ? -INFINITY : (p.top + __log2f(p.sum)) * (1.0f / kLog2e);
  }
};

// ---- items that several CTAs have a part of --------------------------------------------------

// All pieces of an item into the output; all threads of the CTA that was the last to write one.
template <class T, int D, int Rows>
GOSSAMER_INLINE void merge_pieces(const DecodeParams& w, const Cut& cut, const Item<Rows>& item, const Pieces& pieces) {
  constexpr int kAtOnce = 8;  // loads in flight
#pragma unroll 1
  for (int i = threadIdx.x; i < item.rows * D; i += blockDim.x) {
    const int row = i / D, channel = i % D;
    Partial all;
#pragma unroll 1
    for (int cta = pieces.begin; cta <= pieces.end; cta += kAtOnce) {
      Partial some[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (cta + j > pieces.end) continue;
        const PartialRows<D, Rows> p{cut.partials +
                                     static_cast<int64_t>(pieces.slot(cta + j)) * PartialRows<D, Rows>::kFloats};
        some[j].top = __ldcg(&p.top(row)), some[j].sum = __ldcg(&p.sum(row)),
        some[j].out = __ldcg(&p.out(row, channel));
      }
      all.add(some);
    }
    item.template write<T>(w, cut, all, row, channel);
  }
}

}  // namespace gossamer::cuda
