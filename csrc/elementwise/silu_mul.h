// The torch functions of silu_mul and what they share. Semantics: gossamer/ops/silu_mul.py
#pragma once

#include <vector>

#include "gossamer/strided.h"
#include "gossamer/torch/rows.h"
#include "gossamer/torch/tensor.h"

namespace gossamer {

Tensor silu_mul_cpu(const Tensor& x);
Tensor silu_mul_cuda(const Tensor& x);

// A checked call: the two halves of x are inputs of one elementwise loop.
struct SiluMulCall {
  DType dtype;
  Tensor x, out;  // x may be a copy
  int64_t width;  // of a half
  Strided<2> shape;
};

inline SiluMulCall prepare_silu_mul(const Tensor& x) {
  const DType dtype = dtype_of(x, "silu_mul", "x");
  STD_TORCH_CHECK(x.dim() >= 1, "silu_mul: x must have at least 1 dimension");
  const int64_t last = x.dim() - 1, width = x.size(last) / 2;
  STD_TORCH_CHECK(x.size(last) == 2 * width, "silu_mul: the last dimension of x must be even");
  std::vector<int64_t> sizes(last + 1, width);
  for (int64_t d = 0; d < last; ++d) sizes[d] = x.size(d);
  Tensor out = empty_contiguous(x, sizes);
  const Rows rows = as_rows(x);
  Strided<2> shape;
  shape.dims = rows.count == 1 ? 1 : 2;
  shape.numel = rows.count * width;
  shape.size[0] = width;
  shape.size[1] = rows.count;
  for (int k = 0; k < 2; ++k) {
    shape.stride[k][0] = 1;
    shape.stride[k][1] = rows.stride;
  }
  return {dtype, rows.tensor, std::move(out), width, shape};
}

}  // namespace gossamer
