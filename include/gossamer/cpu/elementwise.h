// The elementwise loop of one thread: out[i] = f(in_0[i], ..., in_N-1[i]) over broadcast inputs.
#pragma once

#include "gossamer/cpu/vec.h"
#include "gossamer/strided.h"

namespace gossamer {
namespace {

// Elements i .. i+n-1 of a row whose neighbours are `stride` apart; lanes past n are zero.
template <class T>
GOSSAMER_INLINE F32 load_row(const T* row, int64_t stride, int64_t i, int64_t n) {
  if (stride == 1) return n == kLanes ? load(row + i) : load_partial(row + i, n);
  T gathered[kLanes] = {};
  for (int64_t lane = 0; lane < n; ++lane) gathered[lane] = row[(i + lane) * stride];
  return load(gathered);
}

// One run along the innermost dimension.
template <int N, class T, class F>
GOSSAMER_INLINE void elementwise_row(const T* const (&in)[N], const int64_t (&stride)[N], T* out, int64_t n,
                                     const F& f) {
  bool dense = true;
  for (int k = 0; k < N; ++k) dense &= stride[k] == 1;
  int64_t i = 0;
  if (dense) {
    for (; i + kLanes <= n; i += kLanes) {
      F32 x[N];
      for (int k = 0; k < N; ++k) x[k] = load(in[k] + i);
      store(out + i, f(x, T{}));
    }
  }
  for (; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    F32 x[N];
    for (int k = 0; k < N; ++k) x[k] = load_row(in[k], stride[k], i, count);
    if (count == kLanes) {
      store(out + i, f(x, T{}));
    } else {
      store_partial(out + i, f(x, T{}), count);
    }
  }
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
  for (int d = 0; d < shape.dims; ++d) {
    index[d] = rest % shape.size[d];
    rest /= shape.size[d];
  }
  for (int k = 0; k < N; ++k) {
    inner[k] = shape.stride[k][0];
    row[k] = static_cast<const T*>(in[k]);
    for (int d = 0; d < shape.dims; ++d) row[k] += index[d] * shape.stride[k][d];
  }
  while (begin < end) {
    const int64_t left = shape.size[0] - index[0];
    const int64_t n = left < end - begin ? left : end - begin;
    elementwise_row<N>(row, inner, static_cast<T*>(out) + begin, n, f);
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
