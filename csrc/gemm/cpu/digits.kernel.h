// A few rows of x times codes of 4 or 8 bits in integers, by AVX-512's VNNI: of 4 bits 1.7 times as fast as expanding
// them to floats (one core of a Zen 4 EPYC). Of each 32 numbers of x, the largest makes a scale, and each becomes an
// integer of 16 bits in two digits of 8; products are exact from there on. Include from *.kernel.cpp files alone.
#pragma once

#include "dot_int8.kernel.h"
#include "expanded.kernel.h"

namespace gossamer {
namespace {

#if GOSSAMER_LANES == 16
constexpr int kDotColumns = 8;           // rows of weights at a time, two in a register
constexpr float kDigitsMost = 32639;     // 127 * 256 + 127
constexpr float kLeastLargest = 1e-30f;  // of 32 numbers; smaller ones are multiples of this / kDigitsMost

// A run of a row of x: scale * (256 * high + low), and the sum of these.
struct Digits {
  int8_t high[kRun], low[kRun];
};
struct RunScale {
  float scale, total;
};

// x [rows, k] in blocks of R rows: digits of the first run of each row, then of the next ones; after all, their scales.
template <int R>
struct PackedDigits {
  const char* data;
  int64_t rows, runs;

  Digits* digits(int64_t block) const { return reinterpret_cast<Digits*>(const_cast<char*>(data)) + block * R * runs; }
  RunScale* scales(int64_t block) const {
    return reinterpret_cast<RunScale*>(digits(count_blocks(rows, R))) + block * R * runs;
  }
};

template <class T>
GOSSAMER_INLINE void pack_run(const T* x, Digits& digits, RunScale& run) {
  const F32 a = load(x), b = load(x + kLanes), size_a = VecMath::abs(a), size_b = VecMath::abs(b);
  const F32 most = select(size_a > size_b, size_a, size_b);
  const float largest = _mm512_reduce_max_ps(reinterpret_cast<__m512>(most));
  const bool finite = _mm512_reduce_add_ps(reinterpret_cast<__m512>((a - a) + (b - b))) == 0;
  run.scale = (largest > kLeastLargest ? largest : kLeastLargest) / kDigitsMost;
  const F32 factor = splat(1 / run.scale);
  if (!finite) run.scale = __builtin_nanf("");  // and so are all results
  const F32 halves[] = {a * factor, b * factor};
  __m512i total = _mm512_setzero_si512();
  for (int h = 0; h < 2; ++h) {
    const __m512i v = _mm512_cvtps_epi32(reinterpret_cast<__m512>(halves[h]));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8);
    const __m128i top = _mm512_cvtepi32_epi8(high), rest = _mm512_cvtepi32_epi8(v);
    std::memcpy(digits.high + h * kLanes, &top, kLanes);
    std::memcpy(digits.low + h * kLanes, &rest, kLanes);
    total = _mm512_add_epi32(total, v);
  }
  run.total = run.scale * static_cast<float>(_mm512_reduce_add_epi32(total));
}

GOSSAMER_INLINE void pack_digits(DType dtype, const void* x, int64_t stride, int64_t rows, int64_t k, void* to) {
  with_row_count(rows, [&](auto count) {
    constexpr int R = decltype(count)::count;
    const PackedDigits<R> packed{static_cast<const char*>(to), rows, k / kRun};
    const auto pack = [&](const auto* from) {
      for (int64_t b = 0; b < count_blocks(rows, R); ++b) {
        for (int64_t i = 0; i < packed.runs * R; ++i) {
          const auto* row = from + (first_row<Tile<R>>(rows, b) + i % R) * stride;
          pack_run(row + i / R * kRun, packed.digits(b)[i], packed.scales(b)[i]);
        }
      }
    };
    if (dtype == DType::f32) return pack(static_cast<const float*>(x));
    if (dtype == DType::f16) return pack(static_cast<const f16_t*>(x));
    pack(static_cast<const bf16_t*>(x));
  });
}

// Codes of a run of two rows of weights, 32 lanes each. Of 4 bits: 16 bytes each, the lower halves first.
GOSSAMER_INLINE __m512i two_rows_of_nibbles(const uint8_t* a, const uint8_t* b) {
  const __m256i both =
      _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
  const __m512i twice =
      _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(both));
  const __m512i shifted = _mm512_srlv_epi64(twice, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
  return _mm512_and_si512(shifted, _mm512_set1_epi8(15));
}

// Of signed bytes, with 128 added to each.
GOSSAMER_INLINE __m512i two_rows_of_bytes(const void* a, const void* b) {
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(a))),
                                          _mm256_loadu_si256(static_cast<const __m256i*>(b)), 1);
  return _mm512_xor_si512(both, _mm512_set1_epi8(-128));
}

GOSSAMER_INLINE __m512i add_products(__m512i sum, __m512i codes, const int8_t* x) {
  const __m512i digits = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(digits));
  return sum;
}

// Sums of one row of x: in each vector those of two rows of weights, 8 lanes each; and, in odd lanes of `shifts`, of
// the minima of all.
struct DotSums {
  __m512 pairs[kDotColumns / 2], shifts;

  // The 8 sums, in their order.
  GOSSAMER_INLINE __m256 results(const DotSums& s) {
    __m256 halves[kDotColumns];
    GOSSAMER_UNROLL
    for (int p = 0; p < kDotColumns / 2; ++p) {
      halves[2 * p] = _mm512_castps512_ps256(s.pairs[p]);
      halves[2 * p + 1] = _mm512_extractf32x8_ps(s.pairs[p], 1);
    }
    const auto four = [&](int c) {
      return _mm256_hadd_ps(_mm256_hadd_ps(halves[c], halves[c + 1]), _mm256_hadd_ps(halves[c + 2], halves[c + 3]));
    };
    const __m256 first = four(0), second = four(4);
    const __m256 sums =
        _mm256_add_ps(_mm256_permute2f128_ps(first, second, 0x20), _mm256_permute2f128_ps(first, second, 0x31));
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_add_ps(sums, _mm512_castps512_ps256(_mm512_permutexvar_ps(odd, s.shifts)));
  }
};

template <class T>
GOSSAMER_INLINE void store_dots(const DotSums& sums, const Result& result, int64_t row, int64_t j, int columns) {
  T shifts[kLanes] = {}, results[kLanes];
  if (result.bias) std::memcpy(shifts, static_cast<const T*>(result.bias) + j, columns * sizeof(T));
  const F32 found = reinterpret_cast<F32>(_mm512_castps256_ps512(DotSums::results(sums)));
  store(results, found + load(shifts));
  std::memcpy(static_cast<T*>(result.out) + row * result.n + j, results, columns * sizeof(T));
}

// As `multiply`. Weights are code * d + m: `codes(a, b, i)` has those of run i of two rows, in 32 lanes each; of 8
// rows, `factors(rows, i)` has d and m of each as neighbours.
template <int R, class Weights>
GOSSAMER_INLINE void multiply_digits(const Weights& weights, const Result& result, const void* packed, int64_t runs,
                                     int64_t column, int64_t begin, int64_t end) {
  constexpr int C = kDotColumns;
  const PackedDigits<R> x{static_cast<const char*>(packed), result.rows, runs};
  for (int64_t j = begin; j < end; j += C) {
    const int columns = static_cast<int>(end - j < C ? end - j : C);
    for (int64_t b = 0; b < count_blocks(result.rows, R); ++b) {
      const Digits* digits = x.digits(b);
      const RunScale* scales = x.scales(b);
      DotSums sums[R];
      decltype(weights.row(0)) rows[C];
      GOSSAMER_UNROLL
      for (int r = 0; r < R; ++r) {
        sums[r].shifts = _mm512_setzero_ps();
        GOSSAMER_UNROLL
        for (int p = 0; p < C / 2; ++p) sums[r].pairs[p] = _mm512_setzero_ps();
      }
      GOSSAMER_UNROLL
      for (int c = 0; c < C; ++c) rows[c] = weights.row(j + (c < columns ? c : 0));
      for (int64_t i = 0; i < runs; ++i, digits += R, scales += R) {
        if (b == 0) weights.template prefetch<C>(rows[0], i, runs);
        const __m512 factors = weights.factors(rows, i);
        __m512 scaled[R];
        GOSSAMER_UNROLL
        for (int r = 0; r < R; ++r) {
          sums[r].shifts = _mm512_fmadd_ps(factors, _mm512_set1_ps(scales[r].total), sums[r].shifts);
          scaled[r] = _mm512_mul_ps(factors, _mm512_set1_ps(scales[r].scale));
        }
        GOSSAMER_UNROLL
        for (int p = 0; p < C / 2; ++p) {
          const __m512i codes = weights.codes(rows[2 * p], rows[2 * p + 1], i);
          const __m512i own = _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2),
                                               _mm512_set1_epi32(4 * p));
          GOSSAMER_UNROLL
          for (int r = 0; r < R; ++r) {
            const __m512i high = add_products(_mm512_setzero_si512(), codes, digits[r].high);
            const __m512i both = add_products(_mm512_slli_epi32(high, 8), codes, digits[r].low);
            sums[r].pairs[p] =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(both), _mm512_permutexvar_ps(own, scaled[r]), sums[r].pairs[p]);
          }
        }
      }
      GOSSAMER_UNROLL
      for (int r = 0; r < R; ++r) {
        const int64_t row = first_row<Tile<R>>(result.rows, b) + r;
        if (result.dtype == DType::f32) store_dots<float>(sums[r], result, row, column + j, columns);
        if (result.dtype == DType::f16) store_dots<f16_t>(sums[r], result, row, column + j, columns);
        if (result.dtype == DType::bf16) store_dots<bf16_t>(sums[r], result, row, column + j, columns);
      }
    }
  }
}

// d and m of 8 rows, which `pair(c)` has as two neighbouring float16, as 16 floats.
template <class Pair>
GOSSAMER_INLINE __m512 factor_pairs(Pair pair) {
  return _mm512_cvtph_ps(_mm256_setr_epi32(pair(0), pair(1), pair(2), pair(3), pair(4), pair(5), pair(6), pair(7)));
}
// The same for d from `scale(c)` and m = -middle * d.
GOSSAMER_INLINE __m512 around(float middle, __m512 twice) {
  return _mm512_mask_mul_ps(twice, 0xaaaa, twice, _mm512_set1_ps(-middle));
}
template <class Scale>
GOSSAMER_INLINE __m512 factors_around(float middle, Scale scale) {
  return around(middle, factor_pairs([&](int c) { return scale(c) * 0x10001; }));
}
#else
GOSSAMER_INLINE bool has_byte_dot() { return false; }
#endif

}  // namespace
}  // namespace gossamer
