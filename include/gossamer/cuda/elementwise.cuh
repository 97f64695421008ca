// Launches the elementwise kernel that suits the inputs' shapes, strides and alignment.
#pragma once

#include "gossamer/cuda/elementwise_kernels.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/torch/broadcast.h"

namespace gossamer::cuda {

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

template <int V, unsigned Mask, Small Kind, class T, int N, class F>
void launch_rows(const ElementwiseArgs<T, N>& args, const F& f, cudaStream_t stream) {
  RowArgs<T, N> row_args(args);
  const int each = args.shape.numel <= kFewPacks ? 1 : rows_unroll<N, Mask>;
  const RowGrid size(args.rows, args.shape.size[0], each);
  const int64_t column_blocks = (args.shape.size[0] - 1) / size.block.x + 1, blocks = size.grid.x * column_blocks;
  STD_TORCH_CHECK(blocks < (int64_t{1} << 31), "too many elements for one launch: ", args.shape.numel);
  row_args.column_blocks = static_cast<unsigned>(column_blocks);
  auto* kernel =
      each == 1 ? rows_kernel<V, Mask, Kind, 1, T, N, F> : rows_kernel<V, Mask, Kind, rows_unroll<N, Mask>, T, N, F>;
  kernel<<<static_cast<unsigned>(blocks), size.block, 0, stream>>>(row_args, f);
}

template <int V, class T, int N, class F>
void launch_flat(const ElementwiseArgs<T, N>& args, const F& f, cudaStream_t stream) {
  const int64_t each = args.shape.numel <= kFewPacks ? 1 : unroll<N>;
  const int64_t blocks = (args.shape.numel - 1) / (kThreads * each) + 1;
  STD_TORCH_CHECK(blocks < (int64_t{1} << 31), "too many elements for one launch: ", args.shape.numel);
  auto* kernel = each == 1 ? flat_kernel<V, 1, T, N, F> : flat_kernel<V, unroll<N>, T, N, F>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(RowArgs<T, N>(args), f);
}

template <int V, unsigned Hint, class T, int N, class F>
void launch_packs(ElementwiseArgs<T, N> args, const F& f, cudaStream_t stream) {
  args.shape.size[0] /= V;
  args.shape.numel /= V;
  args.rows = args.shape.numel / args.shape.size[0];
  unsigned same_element = 0, same_row = 0;  // the inputs that do not change along a row, or down a column
  for (int k = 0; k < N; ++k) {
    same_element |= unsigned(args.shape.stride[k][0] == 0) << k;
    same_row |= unsigned(args.shape.stride[k][1] == 0) << k;
    args.shape.stride[k][0] *= V;
  }
  const bool dense = same_element == 0 || V == 1;  // single elements are read with any stride
  if (args.shape.dims == 1 && dense) {
    launch_flat<V>(args, f, stream);
  } else if (args.shape.dims == 2 && dense && (same_row & Hint) == Hint) {
    launch_rows<V, Hint, Small::same_row>(args, f, stream);
  } else if (args.shape.dims == 2 && dense) {
    launch_rows<V, 0, Small::same_row>(args, f, stream);
  } else if (args.shape.dims == 2 && same_element == Hint) {
    launch_rows<V, Hint, Hint == 0 ? Small::same_row : Small::same_element>(args, f, stream);
  } else {
    const RowGrid size(args.rows, args.shape.size[0], 1);
    if (args.rows < (int64_t{1} << 31)) {  // else the kernel divides plainly
      for (int d = 1; d < args.shape.dims; ++d) args.divider[d] = Divider(static_cast<uint32_t>(args.shape.size[d]));
    }
    broadcast_kernel<V><<<size.grid, size.block, 0, stream>>>(args, f);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// Packed when layout and alignment allow it, else element by element. `Hint` is a bit mask of the inputs
// that are often small, one row or one column; it selects a faster kernel and never changes the result.
template <class T, unsigned Hint, int N, class F>
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
    launch_packs<vector_length<T>, Hint>(args, f, stream);
  } else {
    launch_packs<1, 0u>(args, f, stream);
  }
}

}  // namespace gossamer::cuda
