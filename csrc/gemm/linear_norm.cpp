#include "gemm/linear_norm.h"

#include <limits>

#include "gemm/cpu/linear_norm.kernel.h"
#include "gemm/cpu/run.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "linear_norm";

void check_linear_norm(const Tensor& x, const Tensor& weight, const Tensor& residual, const Tensor& norm_weight,
                       const std::optional<Tensor>& bias, const std::optional<Tensor>& norm_bias,
                       const std::string& norm, double eps) {
  dtype_of(x, kOp, "x");
  check_matches(weight, x, kOp, "weight");
  check_weight(x, weight, kOp, "weight");
  const int64_t n = weight.size(0);
  STD_TORCH_CHECK(n >= 1 && n <= 65536, kOp, ": weight must have 1 to 65536 rows");
  check_matches(residual, x, kOp, "residual");
  bool fits = residual.dim() == x.dim() && residual.size(x.dim() - 1) == n;
  for (int64_t d = 0; fits && d + 1 < x.dim(); ++d) fits = residual.size(d) == x.size(d);
  STD_TORCH_CHECK(fits, kOp, ": residual must have the shape of x @ weight.T");
  check_bias(norm_weight, x, n, kOp, "norm_weight");
  check_bias(bias, x, n, kOp, "bias");
  check_bias(norm_bias, x, n, kOp, "norm_bias");
  STD_TORCH_CHECK(norm == "rms" || norm == "layer", kOp, ": norm must be 'rms' or 'layer'");
  STD_TORCH_CHECK(eps >= 0 && eps <= std::numeric_limits<double>::max(), kOp, ": eps must be finite and >= 0");
}

}  // namespace

std::tuple<Tensor, Tensor> linear_norm_cpu(const Tensor& x, const Tensor& weight, const Tensor& residual,
                                           const Tensor& norm_weight, const std::optional<Tensor>& bias,
                                           const std::optional<Tensor>& norm_bias, std::string norm, double eps) {
  check_linear_norm(x, weight, residual, norm_weight, bias, norm_bias, norm, eps);
  Epilogue epilogue;
  epilogue.addend = dense(residual);
  Tensor total = linear_with_epilogue(x, weight, bias, epilogue);
  Tensor normed = empty_result(x, weight.size(0));
  if (total.numel() == 0) return {normed, total};
  const std::optional<Tensor> scale = dense(norm_weight), shift = dense(norm_bias);
  const RowNorm work{dtype_of(x, kOp, "x"),  norm == "layer", weight.size(0), static_cast<float>(eps),
                     total.const_data_ptr(), data_of(scale),  data_of(shift), normed.mutable_data_ptr()};
  const auto kernel = GOSSAMER_CPU_KERNEL(row_norm);
  const int64_t grain = 16384 / work.width + 1;  // rows; about 10 us of memory traffic
  torch::stable::parallel_for(0, total.numel() / work.width, grain,
                              [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return {normed, total};
}

}  // namespace gossamer
