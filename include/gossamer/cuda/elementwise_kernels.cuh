// The elementwise kernels: out[i] = f(in_0[i], ..., in_N-1[i]) over broadcast inputs.
//
// Memory bound: a thread moves 16 bytes per access (a pack) and has several packs of each input on
// their way at once. Index arithmetic is what slows such kernels down, so shapes of one and two
// dimensions, which nearly all calls merge into, have kernels without any division.
#pragma once

#include "gossamer/cuda/divider.cuh"
#include "gossamer/cuda/vector.cuh"
#include "gossamer/strided.h"

namespace gossamer::cuda {

constexpr int kThreads = 256;
// Of the kernel of two dimensions: silu_mul of 32 x 28,672 takes 4.1 us so on an H200, with 256 threads 4.2.
constexpr int kRowThreads = 128;

// Packs of each input in flight: 64 to 128 bytes per thread, and registers for at least 4 blocks.
template <int Streams>
constexpr int unroll = Streams <= 2 ? 4 : 2;

// Up to this many packs, a thread takes one: all multiprocessors have work then, and the code is short, for a cold call
// waits for its instructions too.
constexpr int64_t kFewPacks = 1 << 19;

template <class T, int N>
struct ElementwiseArgs {
  const T* in[N];
  T* out;
  Strided<N> shape;           // dimension 0 counts packs; strides are from pack to pack there
  int64_t rows;               // product of the other dimensions
  Divider divider[kMaxDims];  // by the sizes of the outer dimensions, while rows < 2^31
  int64_t last_offset[N];     // for debug builds
};

// What the kernels of one and two dimensions need of it: few bytes, for a cold call waits for its arguments as well,
// and offsets of 31 bits (gelu(x + bias) of 16,384 x 4096 on an H200: 65 us, with 64 bits 67). See for_parts.
template <class T, int N>
struct RowArgs {
  const T* in[N];
  T* out;
  int inner[N], outer[N];  // strides, from pack to pack and from row to row
  int columns, rows;       // columns are packs
  int64_t last_offset[N];  // for debug builds
};

template <int V, class Args>
GOSSAMER_INLINE auto load_input(const Args& args, int k, int64_t offset) {
  GOSSAMER_ASSERT(offset >= 0 && offset + V - 1 <= args.last_offset[k]);
  using T = std::decay_t<decltype(*args.out)>;
  return load<T, V>(args.in[k] + offset);
}

// f of N packs, element by element.
template <int V, class T, int N, class F>
GOSSAMER_INLINE Pack<T, V> apply(const F& f, const float (&in)[N][V]) {
  float out[V];
#pragma unroll
  for (int i = 0; i < V; ++i) {
    float x[N];
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = in[k][i];
    out[i] = f(x);
  }
  return pack<T, V>(out);
}

// ---- one dimension ---------------------------------------------------------------------
template <int V, int kUnroll, class T, int N, class F>
__global__ void __launch_bounds__(kThreads) flat_kernel(const RowArgs<T, N> args, const F f) {
  const int first = blockIdx.x * (kThreads * kUnroll) + threadIdx.x;
  Pack<T, V> in[kUnroll][N];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int index = first + u * kThreads;
    if (index < args.columns) {
#pragma unroll
      for (int k = 0; k < N; ++k) in[u][k] = load_input<V>(args, k, index * args.inner[k]);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int index = first + u * kThreads;
    if (index < args.columns) {
      float x[N][V];
#pragma unroll
      for (int k = 0; k < N; ++k) unpack<T, V>(in[u][k], x[k]);
      store<T, V>(args.out + index * V, apply<V, T, N>(f, x));
    }
  }
}

// ---- two dimensions: a thread stays in its column and visits one or more rows ----------------
enum class Small { same_row, same_element };

// The inputs in the bit mask Mask are small: one row for all (a thread reads and converts it once), or one element for
// each row. The others differ from element to element.
//
// How many rows a thread visits in large calls. With one row for all, the function says it: two pay where there is much
// to compute (of 16,384 x 4096 on an H200, gelu(x + bias) takes 70 us with one and 65 with two, x * b + c 63.6
// and 64.5). Single elements are short loads, of which several are to be on their way (x * b + c of 32,768 x 8192: 259
// us with one row, 254 with four).
template <unsigned Mask, Small Kind, class F>
constexpr int rows_unroll = Mask == 0                     ? 1
                            : Kind == Small::same_element ? 4
                                                          : F::rows_per_thread;

// Blocks follow each other along rows: memory is faster in order (silu_mul of 16,384 x 28,672 on an H200: 333 us down
// the columns, 320 along the rows).
template <int V, unsigned Mask, Small Kind, int kUnroll, class T, int N, class F>
__global__ void __launch_bounds__(kRowThreads) rows_kernel(const RowArgs<T, N> args, const F f) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int first = (blockIdx.z * gridDim.y + blockIdx.y) * (blockDim.y * kUnroll) + threadIdx.y;
  if (column >= args.columns) return;
  Pack<T, V> in[kUnroll][N];
  float element[kUnroll][N];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int row = first + u * blockDim.y;
    if (row >= args.rows) continue;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int start = row * args.outer[k];
      if (!(Mask >> k & 1)) {
        in[u][k] = load_input<V>(args, k, start + column * args.inner[k]);
      } else if (Kind == Small::same_element) {
        element[u][k] = static_cast<float>(load_input<1>(args, k, start).value[0]);
      }
    }
  }
  float x[N][V];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if ((Mask >> k & 1) && Kind == Small::same_row) {
      unpack<T, V>(load_input<V>(args, k, column * args.inner[k]), x[k]);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int row = first + u * blockDim.y;
    if (row >= args.rows) continue;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (!(Mask >> k & 1)) unpack<T, V>(in[u][k], x[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if ((Mask >> k & 1) && Kind == Small::same_element) x[k][i] = element[u][k];
      }
    }
    store<T, V>(args.out + (row * args.columns + column) * V, apply<V, T, N>(f, x));
  }
}

// ---- any number of dimensions, any broadcast -----------------------------------------------
// Element offsets of a row in every input.
template <class T, int N>
GOSSAMER_INLINE void locate_row(const ElementwiseArgs<T, N>& args, int64_t row, int64_t (&offset)[N]) {
  const bool narrow = args.rows < (int64_t{1} << 31);
  for (int k = 0; k < N; ++k) offset[k] = 0;
  for (int d = 1; d < args.shape.dims; ++d) {
    const int64_t size = args.shape.size[d];
    const int64_t next = narrow ? args.divider[d].divide(static_cast<uint32_t>(row)) : row / size;
    const int64_t at = row - next * size;
#pragma unroll
    for (int k = 0; k < N; ++k) offset[k] += at * args.shape.stride[k][d];
    row = next;
  }
}

template <int V, class T, int N, class F>
__global__ void __launch_bounds__(kThreads) broadcast_kernel(const ElementwiseArgs<T, N> args, const F f) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x;
  if (row >= args.rows) return;
  int64_t offset[N];
  locate_row(args, row, offset);
  for (int64_t column = blockIdx.y * blockDim.x + threadIdx.x; column < args.shape.size[0]; column += step) {
    float x[N][V];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const int64_t inner = args.shape.stride[k][0];
      if (inner == 0) {  // one element for the whole row
        const float value = static_cast<float>(load_input<1>(args, k, offset[k]).value[0]);
#pragma unroll
        for (int i = 0; i < V; ++i) x[k][i] = value;
      } else {
        unpack<T, V>(load_input<V>(args, k, offset[k] + column * inner), x[k]);
      }
    }
    store<T, V>(args.out + (row * args.shape.size[0] + column) * V, apply<V, T, N>(f, x));
  }
}

}  // namespace gossamer::cuda
