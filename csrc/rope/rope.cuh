// The CUDA kernel of rope and rope_inplace.
#pragma once

#include "gossamer/cuda/vector.cuh"

namespace gossamer {
namespace {

constexpr int kRopeThreads = 256;
// Heads that a thread turns by the same cos and sin: 40 heads of 32 and of 16,384 tokens in bfloat16 take 4.4 and 89.6
// us with one on an H200, 4.4 and 83.3 with two, 4.8 and 85.3 with four, whose code is longer.
constexpr int kHeadsPerThread = 2;

template <class T>
struct RopeArgs {
  const T* x;
  T* out;  // may be x
  const int64_t* positions;
  const float *cos, *sin;
  int64_t token_stride, head_stride, out_token_stride, out_head_stride, position_stride, tokens, max_positions;
  int heads, head_dim, pairs;
  int64_t channel_stride, out_channel_stride;  // for V = 1; else 1
};

// V pairs of channels of a head: two packs, halves of the head apart; or one, where pairs lie side by side.
template <class T, int V>
struct alignas(sizeof(T) * V * 2 < cuda::kVectorBytes ? sizeof(T) * V * 2 : cuda::kVectorBytes) Pairs {
  cuda::Pack<T, V> pack[2];
};

template <int V, bool Interleaved>
struct Columns {
  int pairs;

  __device__ int first(int column) const { return (Interleaved ? 2 : 1) * column * V; }
  __device__ int second(int column) const { return first(column) + (Interleaved ? V : pairs); }
};

template <class T, int V, bool Interleaved>
GOSSAMER_INLINE Pairs<T, V> load_pairs(const T* head, Columns<V, Interleaved> at, int column, int64_t stride) {
  Pairs<T, V> x;
  if constexpr (Interleaved && V > 1) {
    reinterpret_cast<cuda::Pack<T, 2 * V>&>(x) = cuda::load<T, 2 * V>(head + at.first(column));
  } else {
    if constexpr (V > 1) stride = 1;
    x.pack[0] = cuda::load<T, V>(head + at.first(column) * stride);
    x.pack[1] = cuda::load<T, V>(head + at.second(column) * stride);
  }
  return x;
}

template <class T, int V, bool Interleaved>
GOSSAMER_INLINE void store_pairs(T* head, Columns<V, Interleaved> at, int column, int64_t stride,
                                 const Pairs<T, V>& x) {
  if constexpr (Interleaved && V > 1) {
    cuda::store<T, 2 * V>(head + at.first(column), reinterpret_cast<const cuda::Pack<T, 2 * V>&>(x));
  } else {
    if constexpr (V > 1) stride = 1;
    cuda::store<T, V>(head + at.first(column) * stride, x.pack[0]);
    cuda::store<T, V>(head + at.second(column) * stride, x.pack[1]);
  }
}

// The same bits from every kernel: left alone, the compiler chooses which of two products an FMA leaves unrounded.
template <class T, int V, bool Interleaved>
GOSSAMER_INLINE void turn(Pairs<T, V>& pairs, const float (&cos)[V], const float (&sin)[V]) {
  float x[2][V], y[2][V];
  cuda::unpack<T, V>(pairs.pack[0], x[0]);
  cuda::unpack<T, V>(pairs.pack[1], x[1]);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int a = Interleaved ? 2 * i : i, b = Interleaved ? 2 * i + 1 : V + i;
    const float left = x[a / V][a % V], right = x[b / V][b % V];
    y[a / V][a % V] = __fmaf_rn(left, cos[i], -__fmul_rn(right, sin[i]));
    y[b / V][b % V] = __fmaf_rn(right, cos[i], __fmul_rn(left, sin[i]));
  }
  pairs.pack[0] = cuda::pack<T, V>(y[0]);
  pairs.pack[1] = cuda::pack<T, V>(y[1]);
}

// One column of the heads head, head + blockDim.y, ... of a token, which x and out point to.
template <class T, int V, bool Interleaved>
GOSSAMER_INLINE void turn_column(const RopeArgs<T>& args, const T* x, T* out, const int64_t* position_of, int head,
                                 int column) {
  const Columns<V, Interleaved> at{args.pairs};
  Pairs<T, V> pairs[kHeadsPerThread];
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int further = h * blockDim.y;
    if (head + further < args.heads) {
      pairs[h] = load_pairs<T, V, Interleaved>(x + further * args.head_stride, at, column, args.channel_stride);
    }
  }
  const int64_t position = *position_of;  // asked for after x, or the compiler lets x wait for cos and sin
  float cos[V], sin[V];
#pragma unroll
  for (int i = 0; i < V; ++i) cos[i] = sin[i] = nanf("");  // what a position out of range makes of a row
  if (position >= 0 && position < args.max_positions) {
    cuda::load_floats<float, V>(args.cos + position * args.pairs + column * V, cos);
    cuda::load_floats<float, V>(args.sin + position * args.pairs + column * V, sin);
  }
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int further = h * blockDim.y;
    if (head + further < args.heads) {
      turn<T, V, Interleaved>(pairs[h], cos, sin);
      store_pairs<T, V, Interleaved>(out + further * args.out_head_stride, at, column, args.out_channel_stride,
                                     pairs[h]);
    }
  }
}

// The same for V channels that are not turned, from `channel` on.
template <class T, int V>
GOSSAMER_INLINE void copy_column(const RopeArgs<T>& args, const T* x, T* out, const int64_t* position_of, int head,
                                 int channel) {
  const int64_t position = *position_of;
  const bool valid = position >= 0 && position < args.max_positions;
  if (valid && out == x) return;
  const int64_t from = channel * (V == 1 ? args.channel_stride : 1),
                to = channel * (V == 1 ? args.out_channel_stride : 1);
  float nan[V];
#pragma unroll
  for (int i = 0; i < V; ++i) nan[i] = nanf("");
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int further = h * blockDim.y;
    if (head + further >= args.heads) return;
    const cuda::Pack<T, V> same =
        valid ? cuda::load<T, V>(x + further * args.head_stride + from) : cuda::pack<T, V>(nan);
    cuda::store<T, V>(out + further * args.out_head_stride + to, same);
  }
}

// blockDim.x threads along the columns of a head: V pairs of channels each, and then V channels to copy; blockDim.y
// along heads, blockDim.z along tokens. V = 1 takes any strides.
template <class T, int V, bool Interleaved>
__global__ void __launch_bounds__(kRopeThreads) rope_kernel(const RopeArgs<T> args) {
  const int64_t token = (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * blockDim.z + threadIdx.z;
  if (token >= args.tokens) return;
  const int64_t* position = args.positions + token * args.position_stride;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(position));  // cos and sin wait for it, and it for 100 instructions
  const int head = blockIdx.x * (blockDim.y * kHeadsPerThread) + threadIdx.y;
  if (head >= args.heads) return;
  const T* x = args.x + token * args.token_stride + head * args.head_stride;
  T* out = args.out + token * args.out_token_stride + head * args.out_head_stride;
  const int turned = args.pairs / V, columns = args.head_dim / V - turned;
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    if (column < turned) {
      turn_column<T, V, Interleaved>(args, x, out, position, head, column);
    } else {
      copy_column<T, V>(args, x, out, position, head, column * V + args.pairs);
    }
  }
}

}  // namespace
}  // namespace gossamer
