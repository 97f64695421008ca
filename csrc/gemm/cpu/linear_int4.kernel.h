#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

// x: [rows, k], `x_stride` elements from row to row. codes: [n, k / 2]; scale, zero: [n, k / group], float16; rows as
// many bytes, or numbers, apart. out: contiguous [rows, n]; bias: [n] or null.
struct LinearInt4 {
  DType dtype;  // of x, bias and out
  int64_t rows, n, k, group;
  const void* x;
  int64_t x_stride;
  const uint8_t* codes;
  int64_t code_stride;
  const uint16_t *scale, *zero;
  int64_t scale_stride, zero_stride;
  const void* bias;
  void* out;
};

// x as the kernel reads it, in aligned memory of rows rounded up to 4 times 2 k floats, once for all threads.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_int4_pack, const LinearInt4& work, void* packed)
// Columns begin .. end-1 of the result.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_int4, const LinearInt4& work, const void* packed, int64_t begin, int64_t end)
// Rows begin .. end-1 of the weights as numbers of `dtype`; out: contiguous, of these rows.
GOSSAMER_DECLARE_CPU_KERNEL(void, dequantize_int4, const LinearInt4& work, void* out, int64_t begin, int64_t end)

}  // namespace gossamer
