// What silu_mul and gelu_mul share: activation(x[..., :n]) * x[..., n:] for x [..., 2n].
#pragma once

#include <vector>

#include "gated.kernel.h"
#include "gossamer/torch/rows.h"
#include "gossamer/torch/tensor.h"

namespace gossamer {

// A checked call: the two halves of x are inputs of one elementwise loop.
struct GatedCall {
  DType dtype;
  Tensor x, out;  // x may be a copy
  int64_t width;  // of a half
  Strided<2> shape;
};

inline GatedCall prepare_gated(const char* op, const Tensor& x) {
  const DType dtype = dtype_of(x, op, "x");
  STD_TORCH_CHECK(x.dim() >= 1, op, ": x must have at least 1 dimension");
  const int64_t last = x.dim() - 1, width = x.size(last) / 2;
  STD_TORCH_CHECK(x.size(last) == 2 * width, op, ": the last dimension of x must be even");
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

inline Tensor gated_cpu(const char* op, const Tensor& x, Activation activation) {
  const GatedCall call = prepare_gated(op, x);
  const char* first = static_cast<const char*>(call.x.const_data_ptr());
  const Gated work{call.dtype,
                   activation,
                   call.shape,
                   {first, first + call.width * call.x.element_size()},
                   call.out.mutable_data_ptr()};
  const auto kernel = GOSSAMER_CPU_KERNEL(gated);
  constexpr int64_t grain = 8192;  // about 4 us of work: less is not worth a thread
  torch::stable::parallel_for(0, call.shape.numel, grain,
                              [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return call.out;
}

}  // namespace gossamer
