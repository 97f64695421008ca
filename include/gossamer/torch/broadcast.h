// From tensors to the loop that visits them: broadcasting, merging of dimensions, output.
#pragma once

#include <array>
#include <vector>

#include "gossamer/strided.h"
#include "gossamer/torch/tensor.h"

namespace gossamer {

// An elementwise call, ready to run: inputs, their common loop and a contiguous output.
template <int N>
struct Elementwise {
  std::array<Tensor, N> in;
  Tensor out;
  DType dtype;
  Strided<N> shape;
};

// The common shape of `tensors` by the usual broadcasting rule.
template <int N>
std::vector<int64_t> broadcast_sizes(const std::array<Tensor, N>& tensors, const char* op) {
  int64_t dims = 0;
  for (const Tensor& t : tensors) dims = t.dim() > dims ? t.dim() : dims;
  std::vector<int64_t> sizes(dims, 1);
  for (const Tensor& t : tensors) {
    for (int64_t d = 0; d < t.dim(); ++d) {
      int64_t& common = sizes[dims - t.dim() + d];
      STD_TORCH_CHECK(t.size(d) == common || t.size(d) == 1 || common == 1, op, ": shapes do not broadcast");
      if (common == 1) common = t.size(d);
    }
  }
  return sizes;
}

// Fills `shape`, whose numel is known; false when more than kMaxDims dimensions remain after merging.
template <int N>
bool merge_dimensions(const std::array<Tensor, N>& tensors, IntHeaderOnlyArrayRef sizes, Strided<N>& shape) {
  const int64_t numel = shape.numel;
  shape = {};
  shape.numel = numel;
  const int64_t dims = static_cast<int64_t>(sizes.size());
  for (int64_t d = dims - 1; d >= 0; --d) {
    if (sizes[d] == 1) continue;
    int64_t stride[N];
    bool merges = shape.dims > 0;
    for (int k = 0; k < N; ++k) {
      const int64_t own = d - (dims - tensors[k].dim());
      stride[k] = own < 0 || tensors[k].size(own) == 1 ? 0 : tensors[k].stride(own);
      const int last = shape.dims - 1;
      merges = merges && stride[k] == shape.stride[k][last] * shape.size[last];
    }
    if (merges) {
      shape.size[shape.dims - 1] *= sizes[d];
      continue;
    }
    if (shape.dims == kMaxDims) return false;
    shape.size[shape.dims] = sizes[d];
    for (int k = 0; k < N; ++k) shape.stride[k][shape.dims] = stride[k];
    ++shape.dims;
  }
  if (shape.dims == 0) {  // a single element
    shape.dims = 1;
    shape.size[0] = 1;
  }
  return true;
}

// The number of elements of `sizes`; an error where that does not fit 63 bits.
inline int64_t count_elements(const std::vector<int64_t>& sizes, const char* op) {
  int64_t count = 1;
  bool overflows = false;
  for (int64_t size : sizes) overflows |= __builtin_mul_overflow(count, size, &count);
  STD_TORCH_CHECK(!overflows, op, ": out of memory: the broadcast shape has more than 2^63 elements");
  return count;
}

template <int N>
Elementwise<N> prepare_elementwise(std::array<Tensor, N> in, const char* op) {
  const DType dtype = dtype_of(in[0], op, "the first argument");
  for (const Tensor& t : in) check_matches(t, in[0], op, "every argument");
  const std::vector<int64_t> sizes = broadcast_sizes<N>(in, op);
  Strided<N> shape;
  shape.numel = count_elements(sizes, op);
  if (!merge_dimensions<N>(in, sizes, shape)) {
    for (Tensor& t : in) t = expanded_copy(t, sizes);
    merge_dimensions<N>(in, sizes, shape);
  }
  Tensor out = empty_contiguous(in[0], sizes);
  return {std::move(in), std::move(out), dtype, shape};
}

// For loops along rows that are dense or repeat one element: copies the inputs that are neither, and
// every one that is not laid out like the output where rows are shorter than a vector. torch's copy
// works in blocks that suit the caches; gathering element by element is several times slower.
template <int N>
void copy_unsuitable_rows(Elementwise<N>& call) {
  constexpr int64_t short_row = 16;
  const bool is_short = call.shape.dims > 1 && call.shape.size[0] < short_row;
  bool copied = false;
  for (int k = 0; k < N; ++k) {
    const int64_t inner = call.shape.stride[k][0];
    if (call.shape.numel > 0 && (is_short || (inner != 0 && inner != 1))) {
      call.in[k] = expanded_copy(call.in[k], call.out.sizes());
      copied = true;
    }
  }
  if (copied) merge_dimensions<N>(call.in, call.out.sizes(), call.shape);
}

}  // namespace gossamer
