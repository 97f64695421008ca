// Launches the elementwise kernel that suits the inputs' shapes, strides and alignment.
#pragma once

#include <algorithm>

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

// Calls `launch` with a shape of one or two dimensions, in parts whose offsets fit 31 bits: nearly always one. Those of
// threads that a grid has to spare fit as well.
template <int V, class T, int N, class Launch>
void for_parts(const ElementwiseArgs<T, N>& args, const Launch& launch) {
  constexpr int64_t limit = (int64_t{1} << 31) - (1 << 17);
  const int64_t columns = args.shape.size[0];
  int64_t across = V, down = columns * V;  // the largest steps, of the result too
  for (int k = 0; k < N; ++k) {
    across = std::max(across, args.shape.stride[k][0]);
    down = std::max(down, args.shape.stride[k][1]);
  }
  const int64_t wide = std::min(columns, std::max<int64_t>(limit / across, 1));
  const int64_t high = wide < columns ? 1 : std::max<int64_t>((limit - columns * across) / down + 1, 1);
  for (int64_t row = 0; row < args.rows; row += high) {
    for (int64_t column = 0; column < columns; column += wide) {
      RowArgs<T, N> part;
      part.out = args.out + (row * columns + column) * V;
      part.columns = static_cast<int>(std::min(wide, columns - column));
      part.rows = static_cast<int>(std::min(high, args.rows - row));
      for (int k = 0; k < N; ++k) {
        const int64_t inner = args.shape.stride[k][0], outer = args.shape.stride[k][1];
        const int64_t start = row * outer + column * inner;
        part.in[k] = args.in[k] + start;
        part.inner[k] = static_cast<int>(inner);
        part.outer[k] = static_cast<int>(outer);
        part.last_offset[k] = args.last_offset[k] - start;
      }
      launch(part);
    }
  }
}

// `threads` threads: a power of two along columns, the rest along rows.
inline dim3 row_block(int64_t columns, unsigned threads) {
  unsigned wide = 1;
  while (wide < threads && wide < columns) wide *= 2;
  return dim3(wide, threads / wide);
}

inline int64_t blocks_of(int64_t count, int64_t each) { return (count - 1) / each + 1; }

template <int V, unsigned Mask, Small Kind, class T, int N, class F>
void launch_rows(const ElementwiseArgs<T, N>& args, const F& f, cudaStream_t stream) {
  const int each = args.shape.numel <= kFewPacks ? 1 : rows_unroll<Mask, Kind, F>;
  for_parts<V>(args, [&](const RowArgs<T, N>& part) {
    const dim3 block = row_block(part.columns, kRowThreads);
    const int64_t row_blocks = blocks_of(part.rows, block.y * each), layers = blocks_of(row_blocks, 65535);
    const dim3 grid(static_cast<unsigned>(blocks_of(part.columns, block.x)),
                    static_cast<unsigned>(blocks_of(row_blocks, layers)), static_cast<unsigned>(layers));
    auto* kernel = each == 1 ? rows_kernel<V, Mask, Kind, 1, T, N, F>
                             : rows_kernel<V, Mask, Kind, rows_unroll<Mask, Kind, F>, T, N, F>;
    kernel<<<grid, block, 0, stream>>>(part, f);
  });
}

template <int V, class T, int N, class F>
void launch_flat(const ElementwiseArgs<T, N>& args, const F& f, cudaStream_t stream) {
  const int each = args.shape.numel <= kFewPacks ? 1 : unroll<N>;
  for_parts<V>(args, [&](const RowArgs<T, N>& part) {
    auto* kernel = each == 1 ? flat_kernel<V, 1, T, N, F> : flat_kernel<V, unroll<N>, T, N, F>;
    kernel<<<static_cast<unsigned>(blocks_of(part.columns, kThreads * each)), kThreads, 0, stream>>>(part, f);
  });
}

template <int V, class T, int N, class F>
void launch_broadcast(ElementwiseArgs<T, N> args, const F& f, cudaStream_t stream) {
  const dim3 block = row_block(args.shape.size[0], kThreads);
  const int64_t row_blocks = blocks_of(args.rows, block.y), column_blocks = blocks_of(args.shape.size[0], block.x);
  STD_TORCH_CHECK(row_blocks < (int64_t{1} << 31), "too many rows for one launch: ", args.rows);
  if (args.rows < (int64_t{1} << 31)) {  // else the kernel divides plainly
    for (int d = 1; d < args.shape.dims; ++d) args.divider[d] = Divider(static_cast<uint32_t>(args.shape.size[d]));
  }
  // At most 65,535 blocks along a row, which loop.
  const dim3 grid(static_cast<unsigned>(row_blocks), static_cast<unsigned>(std::min<int64_t>(column_blocks, 65535)));
  broadcast_kernel<V><<<grid, block, 0, stream>>>(args, f);
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
    launch_broadcast<V>(args, f, stream);
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
