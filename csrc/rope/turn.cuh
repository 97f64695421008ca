// Pairs of channels in packs, as rope and rmsnorm_rope turn them.
#pragma once

#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/vector.cuh"
#include "rope/rope.h"

namespace gossamer {
namespace {

// A column is V pairs of channels: two packs, whose places in a row depend on how channels are paired; or, from
// `turned` columns on, V channels to copy. V = 1 takes any strides.
template <int V, bool Interleaved>
struct Columns {
  int64_t pairs;

  __device__ int64_t first(int64_t column) const { return (Interleaved ? 2 : 1) * column * V; }
  __device__ int64_t second(int64_t column) const { return first(column) + (Interleaved ? V : pairs); }
};

template <class T, int V>
GOSSAMER_INLINE cuda::Pack<T, V> load_channels(const Rope& work, const T* row, int64_t channel) {
  return cuda::load<T, V>(row + (V == 1 ? channel * work.channel_stride : channel));
}

template <class T, int V>
GOSSAMER_INLINE void store_channels(const Rope& work, T* row, int64_t channel, const cuda::Pack<T, V>& pack) {
  cuda::store<T, V>(row + (V == 1 ? channel * work.out_channel_stride : channel), pack);
}

// V pairs, in the order that two packs hold them, turned.
template <int V, bool Interleaved>
GOSSAMER_INLINE void turn_floats(float (&x)[2][V], const float (&cos)[V], const float (&sin)[V]) {
  float y[2][V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int a = Interleaved ? 2 * i : i, b = Interleaved ? 2 * i + 1 : V + i;
    y[a / V][a % V] = x[a / V][a % V] * cos[i] - x[b / V][b % V] * sin[i];
    y[b / V][b % V] = x[b / V][b % V] * cos[i] + x[a / V][a % V] * sin[i];
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    x[0][i] = y[0][i];
    x[1][i] = y[1][i];
  }
}

// V floats of cos or sin; NaN for a position out of range, which then makes NaN of its row.
template <int V>
GOSSAMER_INLINE void load_angles(const Rope& work, const float* table, int64_t position, int64_t column,
                                 float (&out)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) out[i] = nanf("");
  if (position >= 0 && position < work.max_positions) {
    cuda::load_floats<float, V>(table + position * work.pairs + column * V, out);
  }
}

// Whether packs of x, of the result (x itself, or contiguous) and of cos and sin begin at multiples of 16 bytes.
inline bool can_pack(const Rope& work, int length) {
  return work.pairs % length == 0 && work.head_dim % length == 0 && work.channel_stride == 1 &&
         work.token_stride % length == 0 && work.head_stride % length == 0 &&
         cuda::aligned(work.x, cuda::kVectorBytes) && cuda::aligned(work.cos, cuda::kVectorBytes) &&
         cuda::aligned(work.sin, cuda::kVectorBytes);
}

}  // namespace
}  // namespace gossamer
