#include "gemm/linear_int8_weights.h"

#include <vector>

#include "gemm/cpu/linear.kernel.h"
#include "gemm/cpu/linear_int8_weights.kernel.h"
#include "gemm/cpu/run.h"
#include "gemm/linear_8bit.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "linear_int8_weights";
constexpr int64_t kRun = 32, kFewRows = 16;
constexpr int64_t kMaxK = 131071;  // 128 * 128 * k stays below 2^31

LinearInt8Weights prepare(const Tensor& x, const Tensor& weight, const Tensor& scale,
                          const std::optional<Tensor>& bias) {
  LinearInt8Weights work{};
  work.dtype = dtype_of(x, kOp, "x");
  check_weight(x, weight, kOp, "weight");
  STD_TORCH_CHECK(weight.scalar_type() == ScalarType::Char && weight.device() == x.device(), kOp,
                  ": weight must be int8, on the device of x");
  STD_TORCH_CHECK(weight.numel() == 0 || weight.const_data_ptr() != nullptr, kOp, ": weight has no memory");
  work.n = weight.size(0), work.k = weight.size(1);
  STD_TORCH_CHECK(work.k <= kMaxK, kOp, ": the last dimension of x must be 1 to ", kMaxK);
  STD_TORCH_CHECK(scale.scalar_type() == ScalarType::Float && scale.dim() == 2 && scale.size(0) == work.n &&
                      scale.size(1) == 1 && scale.device() == x.device(),
                  kOp, ": weight_scale must be float32 [n, 1], on the device of x");
  STD_TORCH_CHECK(scale.numel() == 0 || scale.const_data_ptr() != nullptr, kOp, ": weight_scale has no memory");
  check_bias(bias, x, work.n, kOp, "bias");
  work.codes = static_cast<const int8_t*>(weight.const_data_ptr()), work.code_stride = weight.stride(0);
  return work;
}

ScalarType scalar_type_of(DType dtype) {
  return dtype == DType::f32 ? ScalarType::Float : dtype == DType::f16 ? ScalarType::Half : ScalarType::BFloat16;
}

// By linear_int8, which adds up bytes: of each row of x one row of higher digits and one of lower ones. Both results
// are rounded, then added up.
Tensor run_many(const LinearInt8Weights& work, const Tensor& x, const Tensor& weight, const Tensor& scale) {
  const int64_t sizes[] = {2 * work.rows, work.k}, scale_sizes[] = {2 * work.rows, 1};
  Tensor codes = empty_contiguous(x, {sizes, 2}, aoti_torch_dtype_int8());
  Tensor scales = empty_contiguous(x, {scale_sizes, 2}, aoti_torch_dtype_float32());
  const auto split = GOSSAMER_CPU_KERNEL(two_digits);
  auto* digits = static_cast<int8_t*>(codes.mutable_data_ptr());
  auto* factors = static_cast<float*>(scales.mutable_data_ptr());
  torch::stable::parallel_for(0, work.rows, 16384 / work.k + 1,
                              [&](int64_t begin, int64_t end) { split(work, digits, factors, begin, end); });
  Tensor both = linear_int8_cpu(codes, scales, weight, scale, std::nullopt, scalar_type_of(work.dtype));
  Linear finish{};
  finish.dtype = work.dtype, finish.rows = work.rows, finish.n = work.n;
  finish.bias = work.bias, finish.out = both.mutable_data_ptr();
  finish.addend = static_cast<const char*>(finish.out) + work.rows * work.n * both.element_size();
  const auto add = GOSSAMER_CPU_KERNEL(linear_finish);
  torch::stable::parallel_for(0, work.rows, 4096 / work.n + 1,
                              [&](int64_t begin, int64_t end) { add(finish, begin, end); });
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = work.n;
  return torch::stable::view(torch::stable::narrow(both, 0, 0, work.rows), shape);
}

}  // namespace

Tensor linear_int8_weights_cpu(const Tensor& x, const Tensor& weight, const Tensor& weight_scale,
                               const std::optional<Tensor>& bias) {
  LinearInt8Weights work = prepare(x, weight, weight_scale, bias);
  if (x.numel() == 0 || work.n == 0) return empty_result(x, work.n);
  const Rows rows = as_rows(x);
  const std::optional<Tensor> dense_bias = dense(bias), scale = dense(weight_scale);
  work.rows = rows.count;
  work.x = rows.tensor.const_data_ptr(), work.x_stride = rows.stride;
  work.scale = static_cast<const float*>(data_of(scale)), work.bias = data_of(dense_bias);
  if (work.rows > kFewRows || work.k % kRun != 0) return run_many(work, rows.tensor, weight, weight_scale);
  Tensor out = empty_result(x, work.n);
  work.out = out.mutable_data_ptr();
  const auto packed_bytes = [](const LinearInt8Weights& w) { return (w.rows + 3) / 4 * 4 * w.k * 8; };
  run_packed<LinearInt8Weights>(work, packed_bytes, GOSSAMER_CPU_KERNEL(linear_int8_weights_pack),
                                GOSSAMER_CPU_KERNEL(linear_int8_weights), 32768);
  return out;
}

}  // namespace gossamer
