#pragma once

#include "gemm/gguf.h"
#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

// x: [rows, k], `x_stride` elements from row to row; k is a multiple of 32. weights: one below the other, `count` of
// them and n rows in all. out: contiguous [rows, n]; bias: [n] or null.
struct LinearGguf {
  DType dtype;  // of x, bias and out
  int64_t rows, n, k;
  const void* x;
  int64_t x_stride;
  const GgufRows* weights;
  int64_t count;
  const void* bias;
  void* out;
};

// x as the kernel reads it, in aligned memory of rows rounded up to 4 times 2 k floats, once for all threads.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_gguf_pack, const LinearGguf& work, void* packed)
// Columns begin .. end-1 of the result.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_gguf, const LinearGguf& work, const void* packed, int64_t begin, int64_t end)
// Rows begin .. end-1 of the weights as numbers of `dtype`; out: contiguous, of these rows.
GOSSAMER_DECLARE_CPU_KERNEL(void, dequantize_gguf, const LinearGguf& work, void* out, int64_t begin, int64_t end)

}  // namespace gossamer
