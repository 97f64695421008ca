// Rows of tiles that several CTAs have a part of.
#pragma once

#include "attention/masked/softmax.cuh"
#include "attention/shared/arrivals.cuh"

namespace gossamer::cuda {

// Partial results of TileQ queries: [TileQ][D] sums, then [TileQ] maxima, then [TileQ] sums of weights.
template <int D, int TileQ>
struct PartialTile {
  static constexpr int kFloats = TileQ * (D + 2);
  float* base;

  __device__ __forceinline__ PartialTile(const MaskedWork& w, int replica, int slot)
      : base(w.partials + (static_cast<int64_t>(replica) * w.slots + slot) * kFloats) {}
  __device__ __forceinline__ float* out(int row, int channel) const { return base + row * D + channel; }
  __device__ __forceinline__ float* top(int row) const { return base + TileQ * D + row; }
  __device__ __forceinline__ float* sum(int row) const { return base + TileQ * (D + 1) + row; }
};

GOSSAMER_INLINE Arrivals arrivals_of(const MaskedWork& w, int replica, const WorkSlots& row) {
  return {w.arrivals + static_cast<int64_t>(replica) * w.slots + row.first_slot};
}

GOSSAMER_INLINE void add_scaled(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor, sum.y += x.y * factor, sum.z += x.z * factor, sum.w += x.w * factor;
}

// All parts of a row into the output; all threads of the CTA that was the last to write one. A thread has four channels
// of Rows queries, so that it has that many loads under way: the others are waiting for nothing but this.
template <class Traits, int Rows>
GOSSAMER_INLINE void merge_rows(const MaskedWork& w, const MaskedPlace& place, const WorkSlots& parts, int first_row) {
  using T = typename Traits::T;
  constexpr int D = Traits::D, kStep = Traits::kThreads / (D / 4);  // rows that lie between a thread's
  using Part = PartialTile<D, Traits::TileQ>;
  const int row = first_row + threadIdx.x / (D / 4), channel = threadIdx.x % (D / 4) * 4;
  float top[Rows], sum[Rows];
  float4 out[Rows];
#pragma unroll
  for (int i = 0; i < Rows; ++i) top[i] = kNothing, sum[i] = 0.0f, out[i] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
  for (int slot = 0; slot < parts.slots; ++slot) {
    const Part part(w, place.replica, parts.first_slot + slot);
#pragma unroll
    for (int i = 0; i < Rows; ++i) top[i] = fmaxf(top[i], __ldcg(part.top(row + i * kStep)));
  }
#pragma unroll 2
  for (int slot = 0; slot < parts.slots; ++slot) {
    const Part part(w, place.replica, parts.first_slot + slot);
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      const float take = exp2_approx(__ldcg(part.top(row + i * kStep)) - top[i]);
      sum[i] += __ldcg(part.sum(row + i * kStep)) * take;
      add_scaled(out[i], __ldcg(reinterpret_cast<const float4*>(part.out(row + i * kStep, channel))), take);
    }
  }
  const int64_t first = (static_cast<int64_t>(place.batch) * w.heads + place.head) * w.q_len + place.query;
#pragma unroll
  for (int i = 0; i < Rows; ++i) {
    const int at = row + i * kStep;
    if (place.query + at >= w.q_len) continue;
    const float share = sum[i] == 0.0f ? 0.0f : __fdividef(1.0f, sum[i]);
    const uint2 x = {pack2<T>(out[i].x * share, out[i].y * share), pack2<T>(out[i].z * share, out[i].w * share)};
    *reinterpret_cast<uint2*>(static_cast<T*>(w.out) + (first + at) * D + channel) = x;
    if (channel == 0 && w.lse != nullptr) w.lse[first + at] = log_of_sum(top[i], sum[i]);
  }
}

// Writes a part of a row down, in `slot`; the last CTA to do so merges them. `row`: the lane's first one, in the tile.
template <class Traits>
GOSSAMER_INLINE void write_part(const MaskedState<Traits::D>& state, const MaskedWork& w, const MaskedPlace& place,
                                const WorkSlots& parts, int slot, int row) {
  constexpr int D = Traits::D, TileQ = Traits::TileQ;
  const PartialTile<D, TileQ> part(w, place.replica, slot);
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<float2*>(part.out(row + 8 * i, 8 * n + 2 * t)) = {state.out[n][2 * i], state.out[n][2 * i + 1]};
    }
    if (t == 0) *part.top(row + 8 * i) = state.top[i], *part.sum(row + 8 * i) = state.sum[i];
  }
  __syncthreads();
  const bool arrived = threadIdx.x == 0 && arrivals_of(w, place.replica, parts).arrive(parts.slots);
  const bool last = __syncthreads_or(arrived);
  if (!last) return;
  constexpr int kRows = 8, kStep = Traits::kThreads / (D / 4);
#pragma unroll 1
  for (int first = 0; first < TileQ; first += kRows * kStep) merge_rows<Traits, kRows>(w, place, parts, first);
}

}  // namespace gossamer::cuda
