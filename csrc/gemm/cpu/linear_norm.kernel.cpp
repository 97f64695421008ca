#include "linear_norm.kernel.h"

#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

// f(i, n) for every vector of a row: its first element and how many it has.
template <class F>
GOSSAMER_INLINE void for_vectors(int64_t width, F f) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) f(i, int64_t{kLanes});
  if (i < width) f(i, width - i);
}

template <class T>
GOSSAMER_INLINE F32 load_some(const T* p, int64_t n) {
  return n == kLanes ? load(p) : load_partial(p, n);
}

// The sum of (x - mean)^power over a row, in parts of at most 4096 elements: float32 stays accurate at any width.
template <int Power, class T>
GOSSAMER_INLINE double moment(const T* x, float mean, int64_t width) {
  constexpr int64_t chunk = 4096;
  double total = 0;
  for (int64_t start = 0; start < width; start += chunk) {
    const int64_t count = width - start < chunk ? width - start : chunk;
    F32 part = {};
    for_vectors(count, [&](int64_t i, int64_t n) {
      F32 d = load_some(x + start + i, n) - mean;
      if (n < kLanes) {  // lanes beyond the end are 0 - mean
        float lanes[kLanes] = {};
        store_partial(lanes, d, n);
        d = load(lanes);
      }
      part += Power == 2 ? d * d : d;
    });
    total += sum(part);
  }
  return total;
}

template <class T>
void norm_rows(const RowNorm& work, int64_t begin, int64_t end) {
  const T *weight = static_cast<const T*>(work.weight), *bias = static_cast<const T*>(work.bias);
  const double width = static_cast<double>(work.width);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(work.in) + row * work.width;
    T* out = static_cast<T*>(work.out) + row * work.width;
    const float mean = work.layer ? static_cast<float>(moment<1>(x, 0.0f, work.width) / width) : 0.0f;
    const float variance = static_cast<float>(moment<2>(x, mean, work.width) / width);
    const float scale = 1.0f / __builtin_sqrtf(variance + work.eps);
    for_vectors(work.width, [&](int64_t i, int64_t n) {
      F32 y = (load_some(x + i, n) - mean) * scale * load_some(weight + i, n);
      if (bias) y += load_some(bias + i, n);
      if (n == kLanes) {
        store(out + i, y);
      } else {
        store_partial(out + i, y, n);
      }
    });
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void row_norm(const RowNorm& work, int64_t begin, int64_t end) {
  if (work.dtype == DType::f32) return norm_rows<float>(work, begin, end);
  if (work.dtype == DType::f16) return norm_rows<f16_t>(work, begin, end);
  norm_rows<bf16_t>(work, begin, end);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
