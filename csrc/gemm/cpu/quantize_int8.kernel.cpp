#include "quantize_int8.kernel.h"

#include "gossamer/cpu/rows.h"

#if GOSSAMER_LANES == 4 && defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gossamer {
namespace {

using Codes = int8_t __attribute__((vector_size(GOSSAMER_LANES)));

// To nearest even. What is not finite gives a number whose last byte is 0, as the reference has it. (Adding and
// subtracting 2^23 would be fused with the product before it, which then is not rounded.)
GOSSAMER_INLINE I32 round_to_int(F32 x) {
#if GOSSAMER_LANES == 16
  return reinterpret_cast<I32>(_mm512_cvtps_epi32(reinterpret_cast<__m512>(x)));
#elif GOSSAMER_LANES == 8
  return reinterpret_cast<I32>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(x)));
#elif defined(__SSE2__)
  return reinterpret_cast<I32>(_mm_cvtps_epi32(reinterpret_cast<__m128>(x)));
#else
  I32 rounded{};
  for (int i = 0; i < kLanes; ++i) {
    if (__builtin_isfinite(x[i])) rounded[i] = static_cast<int32_t>(__builtin_rintf(x[i]));
  }
  return rounded;
#endif
}

GOSSAMER_INLINE void store_codes(int8_t* p, F32 x, int64_t n) {
  const Codes codes = __builtin_convertvector(round_to_int(x), Codes);
  std::memcpy(p, &codes, n);
}
GOSSAMER_INLINE void store_codes(int8_t* p, F32 x, Whole) { store_codes(p, x, kLanes); }
GOSSAMER_INLINE void store_codes(int8_t* p, F32 x, Part part) { store_codes(p, x, part.n); }

// The largest magnitude; NaN where there is one: as integers, magnitudes are in order and NaN is the largest.
template <class T>
GOSSAMER_INLINE float largest(const T* x, int64_t width) {
  I32 most{};
  along_row(width, [&](int64_t i, auto size) {
    const I32 magnitude = reinterpret_cast<I32>(VecMath::abs(load(x + i, size)));
    most = magnitude > most ? magnitude : most;
  });
  int32_t result = 0;
  for (int i = 0; i < kLanes; ++i) result = most[i] > result ? most[i] : result;
  float value;
  std::memcpy(&value, &result, sizeof value);
  return value;
}

template <class T>
void quantize_rows(const QuantizeInt8& work, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(work.x) + row * work.x_stride;
    int8_t* codes = work.codes + row * work.width;
    const float most = largest(x, work.width);
    const float scale = most == 0.0f ? 1.0f : most / 127.0f;
    const float inverse = 1.0f / scale;
    work.scales[row] = scale;
    along_row(work.width, [&](int64_t i, auto size) { store_codes(codes + i, load(x + i, size) * inverse, size); });
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void quantize_int8(const QuantizeInt8& work, int64_t begin, int64_t end) {
  if (work.dtype == DType::f32) return quantize_rows<float>(work, begin, end);
  if (work.dtype == DType::f16) return quantize_rows<f16_t>(work, begin, end);
  quantize_rows<bf16_t>(work, begin, end);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
