#include "fused_residual_rmsnorm.kernel.h"

#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

// sum = x + residual, rounded to T; returns the sum of squares of the rounded values.
template <class T>
GOSSAMER_INLINE double add_row(const T* x, const T* residual, T* sum_out, int64_t width) {
  // Partial sums of at most 4096 elements keep float32 accurate at any width.
  constexpr int64_t chunk = 4096;
  double total = 0;
  for (int64_t start = 0; start < width; start += chunk) {
    const int64_t end = start + chunk < width ? start + chunk : width;
    F32 squares[2] = {};
    int64_t i = start;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      for (int u = 0; u < 2; ++u) {
        T* at = sum_out + i + u * kLanes;
        store(at, load(x + i + u * kLanes) + load(residual + i + u * kLanes));
        const F32 h = load(at);
        squares[u] += h * h;
      }
    }
    for (; i < end; i += kLanes) {
      const int64_t n = end - i < kLanes ? end - i : kLanes;
      store_partial(sum_out + i, load_partial(x + i, n) + load_partial(residual + i, n), n);
      const F32 h = load_partial(sum_out + i, n);
      squares[0] += h * h;
    }
    total += sum(squares[0] + squares[1]);
  }
  return total;
}

template <class T>
GOSSAMER_INLINE void scale_row(const T* h, const T* weight, float scale, T* out, int64_t width) {
  const auto whole_vector = [&](int64_t i) { store(out + i, load(h + i) * scale * load(weight + i)); };
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) whole_vector(i);
  if (i == width) return;
  if (width >= kLanes) return whole_vector(width - kLanes);
  store_partial(out, load_partial(h, width) * scale * load_partial(weight, width), width);
}

template <class T>
void norm_rows(const ResidualRmsNorm& work, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* h = static_cast<T*>(work.new_residual) + row * work.width;
    const double squares = add_row(static_cast<const T*>(work.x) + row * work.x_stride,
                                   static_cast<const T*>(work.residual) + row * work.residual_stride, h, work.width);
    const float mean = static_cast<float>(squares / static_cast<double>(work.width));
    const float scale = 1.0f / __builtin_sqrtf(mean + work.eps);
    scale_row(h, static_cast<const T*>(work.weight), scale, static_cast<T*>(work.normed) + row * work.width,
              work.width);
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void fused_residual_rmsnorm(const ResidualRmsNorm& work, int64_t begin, int64_t end) {
  switch (work.dtype) {
    case DType::f32:
      return norm_rows<float>(work, begin, end);
    case DType::f16:
      return norm_rows<f16_t>(work, begin, end);
    case DType::bf16:
      return norm_rows<bf16_t>(work, begin, end);
  }
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
