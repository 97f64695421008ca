#include "linear_int4.kernel.h"

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
};

}  // namespace

namespace GOSSAMER_ISA {

void linear_int4_pack(const LinearInt4& work, void* packed) {
  pack_any(work.dtype, work.x, work.x_stride, work.rows, work.k, static_cast<float*>(packed));
}

void linear_int4(const LinearInt4& work, const void* packed, int64_t begin, int64_t end) {
  const Result result{work.dtype, work.rows, work.n, work.bias, work.out};
  with_row_count(work.rows, [&](auto rows) {
    multiply<decltype(rows)::count>(Int4Weights{work}, result, static_cast<const float*>(packed), work.k / kRun, 0,
                                    begin, end);
  });
}

void dequantize_int4(const LinearInt4& work, void* out, int64_t begin, int64_t end) {
  expand_any(Int4Weights{work}, work.k / kRun, work.dtype, out, begin, end);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
