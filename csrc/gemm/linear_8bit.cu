#include "gemm/forward.h"
#include "gemm/hopper/launch.cuh"
#include "gemm/linear_8bit.h"

namespace gossamer {
namespace {

using cuda::Sharing;

constexpr int64_t kBlock = 128;  // elements along k, and columns, that share a scale

// Scales of rows, or of blocks, as the kernel reads them.
struct Scales {
  Tensor tensor;
  int64_t count, parts;  // rows of scales, and scales in a row
  const float* data() const { return static_cast<const float*>(tensor.const_data_ptr()); }
  int step() const { return tensor.numel() == 1 ? 0 : static_cast<int>(parts); }
};

Scales scales_of(const char* op, const char* name, const Tensor& t, const Tensor& like) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float && t.device() == like.device(), op, ": ", name,
                  " must be float32, on the device of x");
  STD_TORCH_CHECK(t.dim() >= 1, op, ": ", name, " must have at least 1 dimension");
  const int64_t parts = t.size(t.dim() - 1);
  return {t.is_contiguous() ? t : torch::stable::contiguous(t), t.numel() / (parts > 1 ? parts : 1), parts};
}

// How scales of x and weight go together.
enum class Granularity { rows, blocks, mixed };

Granularity granularity(const char* op, const Scales& a, const Scales& b, int64_t m, int64_t n, int64_t k) {
  const int64_t groups = (k + kBlock - 1) / kBlock, blocks = (n + kBlock - 1) / kBlock;
  const bool a_rows = a.parts == 1 && (a.count == m || a.count == 1), a_groups = a.parts == groups && a.count == m;
  const bool b_rows = b.parts == 1 && (b.count == n || b.count == 1);
  const bool b_blocks = b.parts == groups && b.count == blocks;
  STD_TORCH_CHECK(a_rows || a_groups, op, ": x_scale must be one, one for each row or for each 128 of k");
  STD_TORCH_CHECK(b_rows || b_blocks, op, ": weight_scale must be one, one for each row or for each block");
  if (a_rows && b_rows) return Granularity::rows;
  return a_groups && b_blocks ? Granularity::blocks : Granularity::mixed;
}

template <class Input, class Output>
void launch(Gemm& gemm, bool blocked) {
  if constexpr (!std::is_same_v<Input, int8_t>) {
    using Epilogue = cuda::ActivationEpilogue<Output, Activation::none>;  // scales are in the sums already
    if (blocked) return launch_gemm<cuda::GemmTraits<Input, Epilogue, Sharing::blocked>>(gemm);
  }
  using Epilogue = cuda::ScalesEpilogue<Output>;
  const Sharing sharing = sharing_for(gemm);
  if (sharing == Sharing::rows) return launch_gemm<cuda::GemmTraits<Input, Epilogue, Sharing::rows>>(gemm);
  if (sharing == Sharing::wide_tiles) return launch_gemm<cuda::GemmTraits<Input, Epilogue, Sharing::wide_tiles>>(gemm);
  launch_gemm<cuda::GemmTraits<Input, Epilogue, Sharing::tiles>>(gemm);
}

template <class Input>
Tensor linear_8bit(const char* op, const char* qualified, const Tensor& x, const Tensor& x_scale, const Tensor& weight,
                   const Tensor& weight_scale, const std::optional<Tensor>& bias, ScalarType dtype) {
  check_codes(op, x, weight, bias, dtype);
  const cuda::DeviceGuard guard(x.get_device_index());
  const int64_t n = weight.size(0), k = weight.size(1), m = x.numel() / k;
  const Scales a = scales_of(op, "x_scale", x_scale, x), b = scales_of(op, "weight_scale", weight_scale, x);
  const Granularity granular = granularity(op, a, b, m, n, k);
  // cuBLAS, which that overload then calls, takes 0.91 ms for whole blocks at 8192^3, our kernel 1.06.
  const bool whole = granular == Granularity::blocks && n % kBlock == 0 && k % kBlock == 0 && m % 8 == 0 && !bias;
  if (dtype == ScalarType::Float || granular == Granularity::mixed || whole || !takes(x, weight)) {
    return call_triton(qualified, x, x_scale, weight, weight_scale, bias, dtype);
  }
  const bool half = dtype == ScalarType::Half;
  Tensor out = empty_result(x, n, half ? aoti_torch_dtype_float16() : aoti_torch_dtype_bfloat16());
  if (out.numel() == 0) return out;
  Gemm gemm{};
  gemm.op = op;
  gemm.in = MatrixType::byte, gemm.out = half ? MatrixType::f16 : MatrixType::bf16;
  set_device(gemm, x);
  const Rows rows = aligned_rows(x);
  const std::optional<Tensor> dense_bias = dense(bias);
  gemm.a = {rows.tensor.const_data_ptr(), m, k, rows.stride};
  gemm.b = matrix_of(weight);
  gemm.c = {out.const_data_ptr(), m, n, n * 2};
  gemm.work.bias = data_of(dense_bias);
  gemm.work.row_scale = a.data(), gemm.work.row_step = a.step();
  gemm.work.column_scale = b.data(), gemm.work.column_step = b.step();
  const bool blocked = granular == Granularity::blocks;
  half ? launch<Input, __half>(gemm, blocked) : launch<Input, __nv_bfloat16>(gemm, blocked);
  return out;
}

}  // namespace

Tensor linear_int8_cuda(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                        const std::optional<Tensor>& bias, ScalarType dtype) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Char, "linear_int8: x must be int8");
  return linear_8bit<int8_t>("linear_int8", "gossamer::linear_int8", x, x_scale, weight, weight_scale, bias, dtype);
}

Tensor linear_fp8_cuda(const Tensor& x, const Tensor& x_scale, const Tensor& weight, const Tensor& weight_scale,
                       const std::optional<Tensor>& bias, ScalarType dtype) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float8_e4m3fn, "linear_fp8: x must be float8_e4m3fn");
  return linear_8bit<__nv_fp8_e4m3>("linear_fp8", "gossamer::linear_fp8", x, x_scale, weight, weight_scale, bias,
                                    dtype);
}

}  // namespace gossamer
