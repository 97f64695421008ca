#pragma once

#include "gossamer/activation.h"
#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

// Strides are in elements, from row to row; elements of a row lie side by side.
struct Linear {
  DType dtype;
  int64_t rows, n, k;
  const void* x;
  int64_t x_stride;
  const void* weight;  // [n, k]
  int64_t weight_stride;
  const void* bias;  // [n], or null
  void* out;         // contiguous [rows, n]
  // out = activation(x weight^T + bias) * factor + addend
  Activation activation;
  const void *factor, *addend;  // contiguous [rows, n], or null
};

// x as the kernel reads it: how many bytes that takes, and writing them to aligned memory, once for all threads.
GOSSAMER_DECLARE_CPU_KERNEL(int64_t, linear_packed_bytes, const Linear& work)
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_pack, const Linear& work, void* packed)
// Columns begin .. end-1 of the result. There is at least one row.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear, const Linear& work, const void* packed, int64_t begin, int64_t end)
// Rows begin .. end-1 of `out`, which holds x weight^T, become results.
GOSSAMER_DECLARE_CPU_KERNEL(void, linear_finish, const Linear& work, int64_t begin, int64_t end)

}  // namespace gossamer
