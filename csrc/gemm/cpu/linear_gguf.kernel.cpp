#include "linear_gguf.kernel.h"

#include <type_traits>

#include "expanded.kernel.h"
#include "gguf.kernel.h"

namespace gossamer {
namespace {

// Rows of blocks of one type, as `multiply` and `expand_rows` take them.
template <class Type>
struct GgufWeights {
  static constexpr bool has_codes =
      std::is_same_v<Type, Q4_0> || std::is_same_v<Type, Q4_1> || std::is_same_v<Type, Q8_0>;
  const GgufRows& rows;

  inline __attribute__((always_inline)) const uint8_t* row(int64_t j) const { return rows.data + j * rows.stride; }
  inline __attribute__((always_inline)) void expand(const uint8_t* row, int64_t i, F32 (&w)[kVectors]) const {
    Type::expand(row, i, w);
  }
  template <int C>
  inline __attribute__((always_inline)) void prefetch(const uint8_t* row, int64_t i, int64_t runs) const {
    prefetch_rows<C>(row, rows.stride, i, runs);
  }
#if GOSSAMER_LANES == 16
  inline __attribute__((always_inline)) __m512i codes(const uint8_t* a, const uint8_t* b, int64_t i) const {
    return Type::codes(a, b, i);
  }
  inline __attribute__((always_inline)) __m512 factors(const uint8_t* const (&eight)[kDotColumns], int64_t i) const {
    return Type::factors(eight, i);
  }
#endif
};

// Whether these are multiplied in integers, by digits of x.
bool by_digits(GgufType type) {
  return has_byte_dot() && (type == GgufType::q4_0 || type == GgufType::q4_1 || type == GgufType::q8_0);
}

#if GOSSAMER_LANES == 16
// x in digits, after x in floats.
char* digits_of(const LinearGguf& work, const void* packed) {
  return static_cast<char*>(const_cast<void*>(packed)) + (work.rows + 3) / 4 * 4 * work.k * sizeof(float);
}
#endif

// f(weights, column, first, last) for each of the weights that have some of the rows begin .. end-1 of all: their rows
// first .. last-1, and where in the whole their row 0 is.
template <class F>
GOSSAMER_INLINE void with_weights(const LinearGguf& work, int64_t begin, int64_t end, F f) {
  for (int64_t i = 0, column = 0; i < work.count; column += work.weights[i++].rows) {
    const GgufRows& rows = work.weights[i];
    const int64_t first = begin > column ? begin - column : 0;
    const int64_t last = end - column < rows.rows ? end - column : rows.rows;
    if (first >= last) continue;
    with_type(rows.type, [&](auto type) { f(GgufWeights<decltype(type)>{rows}, column, first, last); });
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void linear_gguf_pack(const LinearGguf& work, void* packed) {
  bool floats = false, digits = false;
  for (int64_t i = 0; i < work.count; ++i) (by_digits(work.weights[i].type) ? digits : floats) = true;
  if (floats) pack_any(work.dtype, work.x, work.x_stride, work.rows, work.k, static_cast<float*>(packed));
#if GOSSAMER_LANES == 16
  if (digits) pack_digits(work.dtype, work.x, work.x_stride, work.rows, work.k, digits_of(work, packed));
#endif
}

void linear_gguf(const LinearGguf& work, const void* packed, int64_t begin, int64_t end) {
  const Result result{work.dtype, work.rows, work.n, work.bias, work.out};
  const auto* x = static_cast<const float*>(packed);
  with_weights(work, begin, end, [&](const auto& weights, int64_t column, int64_t first, int64_t last) {
    with_row_count(work.rows, [&](auto rows) {
      constexpr int R = decltype(rows)::count;
#if GOSSAMER_LANES == 16
      if constexpr (std::decay_t<decltype(weights)>::has_codes) {
        if (has_byte_dot()) {
          return multiply_digits<R>(weights, result, digits_of(work, packed), work.k / kRun, column, first, last);
        }
      }
#endif
      multiply<R>(weights, result, x, work.k / kRun, column, first, last);
    });
  });
}

void dequantize_gguf(const LinearGguf& work, void* out, int64_t begin, int64_t end) {
  const int64_t bytes = work.dtype == DType::f32 ? 4 : 2;
  with_weights(work, begin, end, [&](const auto& weights, int64_t column, int64_t first, int64_t last) {
    void* to = static_cast<char*>(out) + (column + first - begin) * work.k * bytes;
    expand_any(weights, work.k / kRun, work.dtype, to, first, last);
  });
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
