#include "linear_int8_weights.kernel.h"

#include "digits.kernel.h"
#include "expanded.kernel.h"
#include "nibbles.kernel.h"

namespace gossamer {
namespace {

// As `multiply` and `multiply_digits` take them.
struct Int8Weights {
  const LinearInt8Weights& work;
  struct Row {
    const int8_t* codes;
    float scale;
  };

  inline __attribute__((always_inline)) Row row(int64_t j) const {
    return {work.codes + j * work.code_stride, work.scale[j]};
  }
  inline __attribute__((always_inline)) void expand(const Row& row, int64_t i, F32 (&w)[kVectors]) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(row.codes) + i * kRun;
    GOSSAMER_UNROLL
    for (int v = 0; v < kVectors; ++v) w[v] = floats(bytes_at(bytes + v * kLanes) << 24 >> 24) * row.scale;
  }
  template <int C>
  inline __attribute__((always_inline)) void prefetch(const Row& row, int64_t i, int64_t runs) const {
    prefetch_rows<C>(reinterpret_cast<const uint8_t*>(row.codes), work.code_stride, i, runs);
  }
#if GOSSAMER_LANES == 16
  inline __attribute__((always_inline)) __m512i codes(const Row& a, const Row& b, int64_t i) const {
    return two_rows_of_bytes(a.codes + i * kRun, b.codes + i * kRun);
  }
  inline __attribute__((always_inline)) __m512 factors(const Row (&rows)[kDotColumns], int64_t) const {
    const __m512 scales =
        _mm512_castps256_ps512(_mm256_setr_ps(rows[0].scale, rows[1].scale, rows[2].scale, rows[3].scale, rows[4].scale,
                                              rows[5].scale, rows[6].scale, rows[7].scale));
    return around(128,
                  _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), scales));
  }
#endif
};

// The nearest integers, for numbers below 2^22 in size.
GOSSAMER_INLINE I32 nearest(F32 x) {
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: the sum has no bits behind the point
  return reinterpret_cast<I32>(x + shift) - reinterpret_cast<I32>(splat(shift));
}

// f(i, x[i ..], count) for a vector of channels at a time.
template <class T, class F>
GOSSAMER_INLINE void each_vector(const T* x, int64_t k, F f) {
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) f(i, load(x + i), kLanes);
  if (i < k) f(i, load_partial(x + i, k - i), k - i);
}

// As pack_run, for a whole row.
template <class T>
void split_row(const T* x, int64_t k, int8_t* high, int8_t* low, float& high_scale, float& low_scale) {
  using Bytes = int8_t __attribute__((vector_size(kLanes)));
  F32 largest = splat(1e-30f), zeros = {};
  each_vector(x, k, [&](int64_t, F32 v, int64_t) {
    const F32 size = VecMath::abs(v);
    largest = select(size > largest, size, largest);
    zeros += v - v;
  });
  float top = 0;
  for (int lane = 0; lane < kLanes; ++lane) top = largest[lane] > top ? largest[lane] : top;
  const bool finite = sum(zeros) == 0;  // else digits mean nothing, and scales are NaN
  const float scale = top / 32639;      // 127 * 256 + 127
  each_vector(x, k, [&](int64_t i, F32 v, int64_t count) {
    const I32 whole = nearest(v * (1 / scale)), upper = (whole + 128) >> 8;
    const Bytes top_digits = __builtin_convertvector(upper, Bytes),
                rest = __builtin_convertvector(whole - (upper << 8), Bytes);
    std::memcpy(high + i, &top_digits, count);
    std::memcpy(low + i, &rest, count);
  });
  low_scale = finite ? scale : __builtin_nanf("");
  high_scale = 256 * low_scale;
}

}  // namespace

namespace GOSSAMER_ISA {

void linear_int8_weights_pack(const LinearInt8Weights& work, void* packed) {
#if GOSSAMER_LANES == 16
  if (has_byte_dot()) return pack_digits(work.dtype, work.x, work.x_stride, work.rows, work.k, packed);
#endif
  pack_any(work.dtype, work.x, work.x_stride, work.rows, work.k, static_cast<float*>(packed));
}

void linear_int8_weights(const LinearInt8Weights& work, const void* packed, int64_t begin, int64_t end) {
  const Result result{work.dtype, work.rows, work.n, work.bias, work.out};
  with_row_count(work.rows, [&](auto rows) {
    constexpr int R = decltype(rows)::count;
#if GOSSAMER_LANES == 16
    if (has_byte_dot()) return multiply_digits<R>(Int8Weights{work}, result, packed, work.k / kRun, 0, begin, end);
#endif
    multiply<R>(Int8Weights{work}, result, static_cast<const float*>(packed), work.k / kRun, 0, begin, end);
  });
}

void two_digits(const LinearInt8Weights& work, int8_t* codes, float* scales, int64_t begin, int64_t end) {
  const auto split = [&](const auto* x) {
    for (int64_t row = begin; row < end; ++row) {
      int8_t* high = codes + row * work.k;
      split_row(x + row * work.x_stride, work.k, high, high + work.rows * work.k, scales[row], scales[work.rows + row]);
    }
  };
  if (work.dtype == DType::f32) return split(static_cast<const float*>(work.x));
  if (work.dtype == DType::f16) return split(static_cast<const f16_t*>(work.x));
  split(static_cast<const bf16_t*>(work.x));
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
