// The elementwise loop of one thread: out[i] = f(in_0[i], ..., in_N-1[i]) over broadcast inputs.
#pragma once

#include "gossamer/cpu/vec.h"
#include "gossamer/strided.h"

namespace gossamer {
namespace {

// One run along the innermost dimension. An input is dense there (stride 1) or repeats one element
// (stride 0); torch/broadcast.h copies inputs that are neither. Dense: all of them are.
template <bool Dense, int N, class T, class F>
GOSSAMER_INLINE void elementwise_row(const T* const (&in)[N], const int64_t (&stride)[N], T* out, int64_t n,
                                     const F& f) {
  F32 x[N] = {};
  for (int k = 0; k < N; ++k) {
    GOSSAMER_ASSERT(stride[k] == 1 || (!Dense && stride[k] == 0));
    if (!Dense && stride[k] == 0) x[k] = splat(load_partial(in[k], 1)[0]);
  }
  const auto whole_vector = [&](int64_t i) {
    for (int k = 0; k < N; ++k) {
      if (Dense || stride[k] != 0) x[k] = load(in[k] + i);
    }
    store(out + i, f(x, T{}));
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) whole_vector(i);
  if (i == n) return;
  if (n >= kLanes) return whole_vector(n - kLanes);  // once more, for some: cheaper than a partial one
  for (int k = 0; k < N; ++k) {
    if (Dense || stride[k] != 0) x[k] = load_partial(in[k], n);
  }
  store_partial(out, f(x, T{}), n);
}

// Outputs begin .. end-1. `f(x, T{})` maps N vectors to one; T tells it what precision is needed.
template <int N, class T, class F>
void elementwise(const Strided<N>& shape, const void* const (&in)[N], void* out, int64_t begin, int64_t end,
                 const F& f) {
  GOSSAMER_ASSERT(0 <= begin && begin <= end && end <= shape.numel);
  int64_t index[kMaxDims];
  int64_t rest = begin;
  const T* row[N];
  int64_t inner[N];
  bool dense = true;
  for (int d = 0; d < shape.dims; ++d) {
    index[d] = rest % shape.size[d];
    rest /= shape.size[d];
  }
  for (int k = 0; k < N; ++k) {
    inner[k] = shape.stride[k][0];
    dense &= inner[k] == 1;
    row[k] = static_cast<const T*>(in[k]);
    for (int d = 0; d < shape.dims; ++d) row[k] += index[d] * shape.stride[k][d];
  }
  while (begin < end) {
    const int64_t left = shape.size[0] - index[0];
    const int64_t n = left < end - begin ? left : end - begin;
    if (dense) {
      elementwise_row<true>(row, inner, static_cast<T*>(out) + begin, n, f);
    } else {
      elementwise_row<false>(row, inner, static_cast<T*>(out) + begin, n, f);
    }
    begin += n;
    // Step to the start of the next row: an odometer over the outer dimensions.
    for (int k = 0; k < N; ++k) row[k] -= index[0] * inner[k];
    index[0] = 0;
    for (int d = 1; d < shape.dims; ++d) {
      for (int k = 0; k < N; ++k) row[k] += shape.stride[k][d];
      if (++index[d] < shape.size[d]) break;
      for (int k = 0; k < N; ++k) row[k] -= shape.size[d] * shape.stride[k][d];
      index[d] = 0;
    }
  }
}

// The same for an element type known at run time.
template <int N, class F>
void elementwise(DType dtype, const Strided<N>& shape, const void* const (&in)[N], void* out, int64_t begin,
                 int64_t end, const F& f) {
  switch (dtype) {
    case DType::f32:
      return elementwise<N, float>(shape, in, out, begin, end, f);
    case DType::f16:
      return elementwise<N, f16_t>(shape, in, out, begin, end, f);
    case DType::bf16:
      return elementwise<N, bf16_t>(shape, in, out, begin, end, f);
  }
}

}  // namespace
}  // namespace gossamer
