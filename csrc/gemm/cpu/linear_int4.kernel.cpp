#include "linear_int4.kernel.h"

#include "digits.kernel.h"
#include "expanded.kernel.h"
#include "nibbles.kernel.h"

namespace gossamer {
namespace {

// As `multiply` and `expand_rows` take them.
struct Int4Weights {
  const LinearInt4& work;
  struct Row {
    const uint8_t* codes;
    const uint16_t *scale, *zero;
  };

  inline __attribute__((always_inline)) Row row(int64_t j) const {
    return {work.codes + j * work.code_stride, work.scale + j * work.scale_stride, work.zero + j * work.zero_stride};
  }
  inline __attribute__((always_inline)) void expand(const Row& row, int64_t i, F32 (&w)[kVectors]) const {
    const int64_t g = i * kRun / work.group;
    const float d = half_at(row.scale + g);
    Nibbles::expand(Nibbles::of(d, -d * half_at(row.zero + g)), row.codes + i * kRun / 2, w);
  }
  template <int C>
  inline __attribute__((always_inline)) void prefetch(const Row& row, int64_t i, int64_t runs) const {
    prefetch_rows<C>(row.codes, work.code_stride, i, runs);
  }
#if GOSSAMER_LANES == 16
  inline __attribute__((always_inline)) __m512i codes(const Row& a, const Row& b, int64_t i) const {
    return two_rows_of_nibbles(a.codes + i * kRun / 2, b.codes + i * kRun / 2);
  }
  inline __attribute__((always_inline)) __m512 factors(const Row (&rows)[kDotColumns], int64_t i) const {
    const int64_t g = i * kRun / work.group;
    const __m512 both = factor_pairs([&](int c) { return rows[c].scale[g] | rows[c].zero[g] << 16; });
    // (d, zero) to (d, -d * zero)
    return _mm512_mask_mul_ps(both, 0xaaaa, both, _mm512_sub_ps(_mm512_setzero_ps(), _mm512_moveldup_ps(both)));
  }
#endif
};

}  // namespace

namespace GOSSAMER_ISA {

void linear_int4_pack(const LinearInt4& work, void* packed) {
#if GOSSAMER_LANES == 16
  if (has_byte_dot()) return pack_digits(work.dtype, work.x, work.x_stride, work.rows, work.k, packed);
#endif
  pack_any(work.dtype, work.x, work.x_stride, work.rows, work.k, static_cast<float*>(packed));
}

void linear_int4(const LinearInt4& work, const void* packed, int64_t begin, int64_t end) {
  const Result result{work.dtype, work.rows, work.n, work.bias, work.out};
  with_row_count(work.rows, [&](auto rows) {
    constexpr int R = decltype(rows)::count;
#if GOSSAMER_LANES == 16
    if (has_byte_dot()) return multiply_digits<R>(Int4Weights{work}, result, packed, work.k / kRun, 0, begin, end);
#endif
    multiply<R>(Int4Weights{work}, result, static_cast<const float*>(packed), work.k / kRun, 0, begin, end);
  });
}

void dequantize_int4(const LinearInt4& work, void* out, int64_t begin, int64_t end) {
  expand_any(Int4Weights{work}, work.k / kRun, work.dtype, out, begin, end);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
