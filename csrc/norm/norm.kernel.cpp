#include "norm.kernel.h"

#include "gossamer/cpu/rows.h"

namespace gossamer {
namespace {

template <class T>
GOSSAMER_INLINE void scale_row(const T* h, float mean, float scale, const T* weight, const T* bias, T* out,
                               int64_t width) {
  along_row(width, [&](int64_t i, auto size) {
    F32 y = (load(h + i, size) - mean) * scale * load(weight + i, size);
    if (bias != nullptr) y += load(bias + i, size);
    store(out + i, y, size);
  });
}

template <class T, bool Add, bool Layer>
void norm_rows(const Norm& work, int64_t begin, int64_t end) {
  const int64_t width = work.width;
  const T* input_bias = static_cast<const T*>(work.input_bias);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(work.x) + row * work.x_stride;
    const T* residual = Add ? static_cast<const T*>(work.residual) + row * work.residual_stride : nullptr;
    T* added = Add ? static_cast<T*>(work.sum) + row * width : nullptr;
    const T* h = Add ? added : x;
    double total = sum_row(width, [&](int64_t i, auto size) {
      F32 value = load(x + i, size);
      if (Add) {
        if (input_bias != nullptr) value += load(input_bias + i, size);
        store(added + i, value + load(residual + i, size), size);
        value = load(h + i, size);  // rounded
      }
      return Layer ? value : value * value;
    });
    const float mean = Layer ? static_cast<float>(total / static_cast<double>(width)) : 0.0f;
    if (Layer) {
      total = sum_row(width, [&](int64_t i, auto size) {
        const F32 off = load(h + i, size) - mean;
        return off * off;
      });
    }
    const float variance = static_cast<float>(total / static_cast<double>(width));
    scale_row(h, mean, 1.0f / __builtin_sqrtf(variance + work.eps), static_cast<const T*>(work.weight),
              static_cast<const T*>(work.bias), static_cast<T*>(work.normed) + row * width, width);
  }
}

template <class T>
void norm_rows(const Norm& work, int64_t begin, int64_t end) {
  if (work.residual == nullptr) return norm_rows<T, false, false>(work, begin, end);
  if (work.layer) return norm_rows<T, true, true>(work, begin, end);
  return norm_rows<T, true, false>(work, begin, end);
}

}  // namespace

namespace GOSSAMER_ISA {

void norm(const Norm& work, int64_t begin, int64_t end) {
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
