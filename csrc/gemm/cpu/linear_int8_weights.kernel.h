#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

// x: [rows, k], `x_stride` elements from row to row; k is a multiple of 32. codes: [n, k], `code_stride` apart; scale:
// [n]. out: contiguous [rows, n]; bias: [n] or null.
struct LinearInt8Weights {
  DType dtype;  // of x, bias and out
  int64_t rows, n, k;
  const void* x;
  int64_t x_stride;
  const int8_t* codes;
  int64_t code_stride;
  const float* scale;
  const void* bias;
  void* out;
};

// x as the kernel reads it, in aligned memory of rows rounded up to 4 times 2 k floats, once for all threads.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_int8_weights_pack, const LinearInt8Weights& work, void* packed)
// Columns begin .. end-1 of the result.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_int8_weights, const LinearInt8Weights& work, const void* packed, int64_t begin,
                            int64_t end)
// Rows begin .. end-1 of x as two int8 each, codes contiguous [2, rows, k] with their scales [2, rows]; any k.
GOSSAMER_DECLARE_CPU_KERNEL(void, two_digits, const LinearInt8Weights& work, int8_t* codes, float* scales,
                            int64_t begin, int64_t end)

}  // namespace gossamer
