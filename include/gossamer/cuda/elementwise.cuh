// The elementwise kernels: out[i] = f(in_0[i], ..., in_N-1[i]) over broadcast inputs.
//
// Memory bound: a thread moves 16 bytes per access (a pack) and has several packs of each input on
// their way at once. Index arithmetic is what slows such kernels down, so shapes of one and two
// dimensions, which nearly all calls merge into, have kernels without any division.
#pragma once

#include "gossamer/cuda/divider.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/vector.cuh"
#include "gossamer/torch/broadcast.h"

namespace gossamer::cuda {

constexpr int kThreads = 256;

// Packs of each input in flight: 64 to 128 bytes per thread, and registers for at least 4 blocks.
template <int Streams>
constexpr int unroll = Streams <= 2 ? 4 : 2;

template <class T, int N>
struct ElementwiseArgs {
  const T* in[N];
  T* out;
  Strided<N> shape;           // dimension 0 counts packs; strides are from pack to pack there
  int64_t rows;               // product of the other dimensions
  Divider divider[kMaxDims];  // by the sizes of the outer dimensions, while rows < 2^31
  int64_t last_offset[N];     // for debug builds
};

template <int V, class T, int N>
GOSSAMER_INLINE Pack<T, V> load_input(const ElementwiseArgs<T, N>& args, int k, int64_t offset) {
  GOSSAMER_ASSERT(offset >= 0 && offset + V - 1 <= args.last_offset[k]);
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
template <int V, class T, int N, class F>
__global__ void __launch_bounds__(kThreads) flat_kernel(const ElementwiseArgs<T, N> args, const F f) {
  constexpr int kUnroll = unroll<N>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
  Pack<T, V> in[kUnroll][N];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t index = first + u * kThreads;
    if (index < args.shape.numel) {
#pragma unroll
      for (int k = 0; k < N; ++k) in[u][k] = load_input<V>(args, k, index * args.shape.stride[k][0]);
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t index = first + u * kThreads;
    if (index < args.shape.numel) {
      float x[N][V];
#pragma unroll
      for (int k = 0; k < N; ++k) unpack<T, V>(in[u][k], x[k]);
      store<T, V>(args.out + index * V, apply<V, T, N>(f, x));
    }
  }
}

// ---- two dimensions: a thread stays in its column and visits several rows ------------------
template <int N, unsigned Shared>
constexpr int rows_unroll = unroll<N - __builtin_popcount(Shared)>;

// Inputs in the bit mask Shared are the same in every row: a thread reads and converts them once.
template <int V, unsigned Shared, class T, int N, class F>
__global__ void __launch_bounds__(kThreads) rows_kernel(const ElementwiseArgs<T, N> args, const F f) {
  constexpr int kUnroll = rows_unroll<N, Shared>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (blockDim.y * kUnroll) + threadIdx.y;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x;
  for (int64_t column = blockIdx.y * blockDim.x + threadIdx.x; column < args.shape.size[0]; column += step) {
    Pack<T, V> in[kUnroll][N];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * blockDim.y;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (!(Shared >> k & 1) && row < args.rows) {
          const int64_t offset = row * args.shape.stride[k][1] + column * args.shape.stride[k][0];
          in[u][k] = load_input<V>(args, k, offset);
        }
      }
    }
    float x[N][V];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (Shared >> k & 1) unpack<T, V>(load_input<V>(args, k, column * args.shape.stride[k][0]), x[k]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * blockDim.y;
      if (row < args.rows) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
          if (!(Shared >> k & 1)) unpack<T, V>(in[u][k], x[k]);
        }
        store<T, V>(args.out + (row * args.shape.size[0] + column) * V, apply<V, T, N>(f, x));
      }
    }
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

// ---- launchers ---------------------------------------------------------------------------
// Whether every input can be read in packs of `length`: rows are dense or one repeated element, and
// start on pack boundaries.
template <class T, int N>
bool can_pack(const ElementwiseArgs<T, N>& args, int length) {
  if (args.shape.size[0] % length != 0) return false;
  for (int k = 0; k < N; ++k) {
    if (args.shape.stride[k][0] == 0) continue;
    if (args.shape.stride[k][0] != 1 || !aligned(args.in[k], kVectorBytes)) return false;
    for (int d = 1; d < args.shape.dims; ++d) {
      if (args.shape.stride[k][d] % length != 0) return false;
    }
  }
  return true;
}

// Blocks of 256 threads that cover all rows and columns; at most 65,535 along a row, which loops.
struct RowGrid {
  dim3 grid, block;

  RowGrid(int64_t rows, int64_t columns, int rows_per_thread) {
    unsigned wide = 1;
    while (wide < kThreads && wide < columns) wide *= 2;
    block = dim3(wide, kThreads / wide);
    const int64_t row_blocks = (rows - 1) / (block.y * rows_per_thread) + 1;
    const int64_t column_blocks = (columns - 1) / block.x + 1;
    STD_TORCH_CHECK(row_blocks < (int64_t{1} << 31), "too many rows for one launch: ", rows);
    grid =
        dim3(static_cast<unsigned>(row_blocks), static_cast<unsigned>(column_blocks < 65535 ? column_blocks : 65535));
  }
};

template <int V, unsigned Shared, class T, int N, class F>
void launch_packs(ElementwiseArgs<T, N> args, const F& f, cudaStream_t stream) {
  args.shape.size[0] /= V;
  args.shape.numel /= V;
  args.rows = args.shape.numel / args.shape.size[0];
  bool repeats = false;  // an input is one element along the row
  unsigned same_rows = 0;
  for (int k = 0; k < N; ++k) {
    repeats |= args.shape.stride[k][0] == 0;
    same_rows |= unsigned(args.shape.stride[k][1] == 0) << k;
    args.shape.stride[k][0] *= V;
  }
  if (args.shape.dims == 1 && (!repeats || V == 1)) {
    const int64_t blocks = (args.shape.numel - 1) / (kThreads * unroll<N>)+1;
    STD_TORCH_CHECK(blocks < (int64_t{1} << 31), "too many elements for one launch: ", args.shape.numel);
    flat_kernel<V><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args, f);
  } else if (args.shape.dims == 2 && (!repeats || V == 1)) {
    const bool shared = (same_rows & Shared) == Shared;
    auto* kernel = shared ? rows_kernel<V, Shared, T, N, F> : rows_kernel<V, 0, T, N, F>;
    const RowGrid size(args.rows, args.shape.size[0], shared ? rows_unroll<N, Shared> : rows_unroll<N, 0>);
    kernel<<<size.grid, size.block, 0, stream>>>(args, f);
  } else {
    const RowGrid size(args.rows, args.shape.size[0], 1);
    if (args.rows < (int64_t{1} << 31)) {  // else the kernel divides plainly
      for (int d = 1; d < args.shape.dims; ++d) args.divider[d] = Divider(static_cast<uint32_t>(args.shape.size[d]));
    }
    broadcast_kernel<V><<<size.grid, size.block, 0, stream>>>(args, f);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// Packed when layout and alignment allow it, else element by element. `Shared` is a hint: the inputs
// that often are one row for all; it selects a faster kernel and never changes the result.
template <class T, unsigned Shared, int N, class F>
void launch_elementwise(const Elementwise<N>& call, const F& f) {
  if (call.shape.numel == 0) return;
  const DeviceGuard guard(call.out.get_device_index());
  const cudaStream_t stream = current_stream(call.out);
  ElementwiseArgs<T, N> args;
  args.out = static_cast<T*>(call.out.mutable_data_ptr());
  args.shape = call.shape;
  for (int k = 0; k < N; ++k) {
    args.in[k] = static_cast<const T*>(call.in[k].const_data_ptr());
    args.last_offset[k] = call.shape.last_offset(k);
  }
  if (can_pack(args, vector_length<T>)) {
    launch_packs<vector_length<T>, Shared>(args, f, stream);
  } else {
    launch_packs<1, 0u>(args, f, stream);
  }
}

}  // namespace gossamer::cuda
