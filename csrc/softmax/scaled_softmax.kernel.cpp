#include "scaled_softmax.kernel.h"

#include "gossamer/cpu/rows.h"

namespace gossamer {
namespace {

// The largest scaled element; NaN is passed over here and makes NaN of the sum later.
template <class T>
GOSSAMER_INLINE float row_max(const T* x, float scale, int64_t width) {
  F32 high = splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const F32 value = load(x + i) * scale;
    high = select(value > high, value, high);
  }
  float top = -__builtin_inff();
  for (int lane = 0; lane < kLanes; ++lane) top = high[lane] > top ? high[lane] : top;
  for (; i < width; ++i) {
    const float value = load_partial(x + i, 1)[0] * scale;
    top = value > top ? value : top;
  }
  return top;
}

template <class T>
void softmax_rows(const ScaledSoftmax& work, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(work.x) + row * work.x_stride;
    T* out = static_cast<T*>(work.out) + row * work.width;
    const float top = row_max(x, work.scale, work.width);
    // Exponentials twice: in 16 bits there is no place to keep them, and they take less time than memory does.
    const auto weight = [&](int64_t i, auto size) { return VecMath::exp(load(x + i, size) * work.scale - top); };
    const float inverse = static_cast<float>(1.0 / sum_row(work.width, weight));
    along_row(work.width, [&](int64_t i, auto size) { store(out + i, weight(i, size) * inverse, size); });
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void scaled_softmax(const ScaledSoftmax& work, int64_t begin, int64_t end) {
  switch (work.dtype) {
    case DType::f32:
      return softmax_rows<float>(work, begin, end);
    case DType::f16:
      return softmax_rows<f16_t>(work, begin, end);
    case DType::bf16:
      return softmax_rows<bf16_t>(work, begin, end);
  }
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
