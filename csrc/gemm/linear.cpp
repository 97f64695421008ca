#include "gemm/linear.h"

#include "gemm/cpu/run.h"

namespace gossamer {
namespace {

void check_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const char* op = "linear";
  check_matches(weight, x, op, "weight");
  STD_TORCH_CHECK(x.dim() == 2 && x.size(1) >= 1, op, ": x must have shape [rows, k], k at least 1");
  STD_TORCH_CHECK(weight.dim() == 2 && weight.size(1) == x.size(1), op, ": weight must have shape [n, k]");
  STD_TORCH_CHECK(weight.size(1) == 1 || weight.stride(1) == 1, op, ": rows of weight must be contiguous");
  if (!bias) return;
  check_matches(*bias, x, op, "bias");
  STD_TORCH_CHECK(bias->dim() == 1 && bias->size(0) == weight.size(0), op, ": bias must have shape [n]");
}

}  // namespace

Tensor linear_cpu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  Linear work{};
  work.dtype = dtype_of(x, "linear", "x");
  check_linear(x, weight, bias);
  const int64_t sizes[] = {x.size(0), weight.size(0)};
  Tensor out = empty_contiguous(x, {sizes, 2});
  if (out.numel() == 0) return out;
  const Rows rows = as_rows(x);
  const Tensor dense_bias = bias && !bias->is_contiguous() ? torch::stable::contiguous(*bias) : bias.value_or(x);
  work.rows = rows.count;
  work.n = sizes[1];
  work.k = rows.width;
  work.x = rows.tensor.const_data_ptr();
  work.x_stride = rows.stride;
  work.weight = weight.const_data_ptr();
  work.weight_stride = weight.stride(0);
  work.bias = bias ? dense_bias.const_data_ptr() : nullptr;
  work.out = out.mutable_data_ptr();
  run_linear(work);
  return out;
}

}  // namespace gossamer
