#include "gemm/linear_8bit.h"

#include <cstdlib>

#include "gemm/gemm_launch.cuh"

namespace gossamer {
namespace {

using cuda::Sharing;

constexpr int64_t kBlock = 128;  // elements along k, and columns, that share a scale

// Scales as the kernel reads them. parts: scales of a row; step: from one row to the next.
struct Scales {
  Tensor tensor;
  int64_t count, parts;
  int step;
  const float* data() const { return static_cast<const float*>(tensor.const_data_ptr()); }
};

Scales scales_of(const char* op, const char* name, const Tensor& t, const Tensor& like) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float && t.device() == like.device(), op, ": ", name,
                  " must be float32, on the device of x");
  STD_TORCH_CHECK(t.dim() >= 1 && t.numel() > 0, op, ": ", name, " must not be empty");
  const int64_t parts = t.size(t.dim() - 1);
  return {t.is_contiguous() ? t : torch::stable::contiguous(t), t.numel() / parts, parts,
          t.numel() == 1 ? 0 : static_cast<int>(parts)};
}

int32_t result_type(const char* op, ScalarType dtype, MatrixType& type) {
  STD_TORCH_CHECK(dtype == ScalarType::Half || dtype == ScalarType::BFloat16, op,
                  ": the CUDA kernel makes float16 and bfloat16");
  type = dtype == ScalarType::Half ? MatrixType::f16 : MatrixType::bf16;
  return dtype == ScalarType::Half ? aoti_torch_dtype_float16() : aoti_torch_dtype_bfloat16();
}

template <class Input, class Output>
void launch(Gemm& gemm, bool blocked) {
  if constexpr (!std::is_same_v<Input, int8_t>) {
    using Finish = cuda::FinishActivation<Output, Activation::none>;  // scales are in the sums already
    if (blocked) return launch_gemm<cuda::GemmTraits<Input, Finish, Sharing::blocked>>(gemm);
  }
  const char* name = std::getenv("GOSSAMER_GEMM");
  if (name && name[0] == 't') return launch_gemm<cuda::GemmTraits<Input, cuda::FinishScales<Output>, Sharing::tiles>>(gemm);
  launch_gemm<cuda::GemmTraits<Input, cuda::FinishScales<Output>, Sharing::rows>>(gemm);
}

template <class Input>
Tensor linear_8bit(const char* op, const Tensor& x, const Tensor& x_scale, const Tensor& weight,
                   const Tensor& weight_scale, const std::optional<Tensor>& bias, ScalarType dtype) {
  check_weight(x, weight, op, "weight");
  STD_TORCH_CHECK(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(), op,
                  ": weight must have the dtype and device of x");
  Gemm gemm{};
  gemm.op = op;
  gemm.in = MatrixType::byte;
  const int32_t type = result_type(op, dtype, gemm.out);
  const int64_t n = weight.size(0), k = weight.size(1);
  if (bias) {
    STD_TORCH_CHECK(bias->scalar_type() == dtype && bias->device() == x.device() && bias->dim() == 1 &&
                        bias->size(0) == n,
                    op, ": bias must have shape [n], the result's dtype and the device of x");
  }
  const cuda::DeviceGuard guard(x.get_device_index());
  Tensor out = empty_products(x, n, type);
  if (out.numel() == 0) return out;
  set_device(gemm, x);
  const Rows rows = aligned_rows(op, "x", x);
  const std::optional<Tensor> dense_bias = dense(bias);
  const Scales a = scales_of(op, "x_scale", x_scale, x), b = scales_of(op, "weight_scale", weight_scale, x);
  // With one block along k there may still be several along n.
  const bool blocked = a.parts > 1 || b.parts > 1 || (b.count != n && b.count != 1);
  if (blocked) {
    STD_TORCH_CHECK(a.count == rows.count && a.parts == (k + kBlock - 1) / kBlock && b.parts == a.parts &&
                        b.count == (n + kBlock - 1) / kBlock,
                    op, ": the CUDA kernel takes scales of 1 x 128 of x with those of 128 x 128 of weight");
  } else {
    STD_TORCH_CHECK((a.count == rows.count || a.count == 1) && (b.count == n || b.count == 1), op,
                    ": scales must be one, or one for each row");
  }
  gemm.a = {rows.tensor.const_data_ptr(), rows.count, k, rows.stride};
  gemm.b = aligned_weight(op, "weight", weight);
  gemm.c = {out.const_data_ptr(), rows.count, n, n * 2};
  gemm.work.bias = data_of(dense_bias);
  gemm.work.row_scale = a.data(), gemm.work.row_step = a.step;
  gemm.work.column_scale = b.data(), gemm.work.column_step = b.step;
  if (dtype == ScalarType::Half) {
    launch<Input, __half>(gemm, blocked);
  } else {
    launch<Input, __nv_bfloat16>(gemm, blocked);
  }
  return out;
}

}  // namespace

Tensor linear_int8_cuda(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                        const std::optional<Tensor>& bias, ScalarType dtype) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Char, "linear_int8: x must be int8");
  return linear_8bit<int8_t>("linear_int8", x, x_scale, weight, weight_scale, bias, dtype);
}

Tensor linear_fp8_cuda(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                       const std::optional<Tensor>& bias, ScalarType dtype) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float8_e4m3fn, "linear_fp8: x must be float8_e4m3fn");
  return linear_8bit<__nv_fp8_e4m3>("linear_fp8", x, x_scale, weight, weight_scale, bias, dtype);
}

}  // namespace gossamer
