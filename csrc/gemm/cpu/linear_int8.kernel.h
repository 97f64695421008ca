#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

// Strides are in elements, from row to row; elements of a row lie side by side.
struct LinearInt8 {
  DType dtype;  // of bias and out
  int64_t rows, n, k;
  const int8_t* x;
  int64_t x_stride;
  const float* x_scale;  // [rows]
  const int8_t* weight;  // [n, k]
  int64_t weight_stride;
  const float* weight_scale;  // [n]
  const void* bias;           // [n], or null
  void* out;                  // contiguous [rows, n]
};

// x as the kernel reads it: how many bytes that takes, and writing them to aligned memory, once for all threads.
GOSSAMER_DECLARE_CPU_KERNEL(int64_t, linear_int8_packed_bytes, const LinearInt8& work)
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_int8_pack, const LinearInt8& work, void* packed)
// Columns begin .. end-1 of the result. There is at least one row.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_int8, const LinearInt8& work, const void* packed, int64_t begin, int64_t end)

}  // namespace gossamer
