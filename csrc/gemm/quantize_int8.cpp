#include "gemm/quantize_int8.h"

#include "gemm/cpu/quantize_int8.kernel.h"
#include "gossamer/torch/rows.h"

namespace gossamer {

std::tuple<Tensor, Tensor> quantize_int8_cpu(const Tensor& x) {
  QuantizeInt8 work{};
  work.dtype = dtype_of(x, "quantize_int8", "x");
  STD_TORCH_CHECK(x.dim() >= 1, "quantize_int8: x must have at least 1 dimension");
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  Tensor codes = empty_contiguous(x, sizes, aoti_torch_dtype_int8());
  sizes.back() = 1;
  Tensor scales = empty_contiguous(x, sizes, aoti_torch_dtype_float32());
  if (x.numel() == 0) return {codes, torch::stable::fill_(scales, 1.0)};
  const Rows rows = as_rows(x);
  work.width = rows.width;
  work.x = rows.tensor.const_data_ptr(), work.x_stride = rows.stride;
  work.codes = static_cast<int8_t*>(codes.mutable_data_ptr());
  work.scales = static_cast<float*>(scales.mutable_data_ptr());
  const auto kernel = GOSSAMER_CPU_KERNEL(quantize_int8);
  const int64_t grain = 16384 / work.width + 1;  // rows; about 5 us
  torch::stable::parallel_for(0, rows.count, grain, [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return {codes, scales};
}

}  // namespace gossamer
