#include "gemm/cpu/linear_int8.kernel.h"
#include "gemm/cpu/run.h"
#include "gemm/linear_8bit.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "linear_int8";
constexpr int64_t kMaxK = 133000;  // 127 * 127 * k stays below 2^31

DType float_type(ScalarType dtype) {
  return dtype == ScalarType::Float ? DType::f32 : dtype == ScalarType::Half ? DType::f16 : DType::bf16;
}

int32_t shim_type(DType dtype) {
  return dtype == DType::f32   ? aoti_torch_dtype_float32()
         : dtype == DType::f16 ? aoti_torch_dtype_float16()
                               : aoti_torch_dtype_bfloat16();
}

void check_memory(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.numel() == 0 || t.const_data_ptr() != nullptr, kOp, ": ", name, " has no memory");
}

// Float32 [..., 1], as many as `like` [..., k] has rows.
void check_scale(const Tensor& scale, const Tensor& like, const char* name) {
  check_memory(scale, name);
  bool fits = scale.dim() == like.dim() && scale.size(like.dim() - 1) == 1;
  for (int64_t d = 0; fits && d + 1 < like.dim(); ++d) fits = scale.size(d) == like.size(d);
  STD_TORCH_CHECK(fits && scale.scalar_type() == ScalarType::Float && scale.device() == like.device(), kOp, ": ", name,
                  " must be float32, one for each row, on the device of x");
}

void check_linear_int8(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                       const std::optional<Tensor>& bias, ScalarType dtype) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Char, kOp, ": x must be int8");
  check_memory(x, "x");
  check_memory(weight, "weight");
  check_codes(kOp, x, weight, bias, dtype);
  if (bias) check_memory(*bias, "bias");
  STD_TORCH_CHECK(weight.size(1) <= kMaxK, kOp, ": the last dimension of x must be 1 to ", kMaxK);
  check_scale(x_scale, x, "x_scale");
  check_scale(weight_scale, weight, "weight_scale");
}

}  // namespace

Tensor linear_int8_cpu(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                       const std::optional<Tensor>& bias, ScalarType dtype) {
  check_linear_int8(x, x_scale, weight, weight_scale, bias, dtype);
  LinearInt8 work{};
  work.dtype = float_type(dtype);
  Tensor out = empty_result(x, weight.size(0), shim_type(work.dtype));
  if (out.numel() == 0) return out;
  const Rows rows = as_rows(x);
  const std::optional<Tensor> dense_bias = dense(bias), row_scale = dense(x_scale), column_scale = dense(weight_scale);
  work.rows = rows.count, work.n = weight.size(0), work.k = rows.width;
  work.x = static_cast<const int8_t*>(rows.tensor.const_data_ptr()), work.x_stride = rows.stride;
  work.x_scale = static_cast<const float*>(data_of(row_scale));
  work.weight = static_cast<const int8_t*>(weight.const_data_ptr()), work.weight_stride = weight.stride(0);
  work.weight_scale = static_cast<const float*>(data_of(column_scale));
  work.bias = data_of(dense_bias);
  work.out = out.mutable_data_ptr();
  // About 5 us of reading weights: less is not worth a thread.
  run_packed(work, GOSSAMER_CPU_KERNEL(linear_int8_packed_bytes), GOSSAMER_CPU_KERNEL(linear_int8_pack),
             GOSSAMER_CPU_KERNEL(linear_int8), 65536);
  return out;
}

}  // namespace gossamer
