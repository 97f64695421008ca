#include "gemm/linear_int4.h"

#include "gemm/cpu/linear_int4.kernel.h"
#include "gemm/cpu/run_expanded.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "linear_int4";
constexpr int64_t kRun = 32;  // groups are whole runs

void check_rows(const Tensor& t, const Tensor& x, ScalarType dtype, int64_t n, const char* name) {
  STD_TORCH_CHECK(t.scalar_type() == dtype && t.dim() == 2 && t.size(0) == n, kOp, ": ", name,
                  " is of another type or shape");
  STD_TORCH_CHECK(t.device() == x.device(), kOp, ": ", name, " must be on the device of x");
  STD_TORCH_CHECK(t.size(1) == 1 || t.stride(1) == 1, kOp, ": rows of ", name, " must be contiguous");
  STD_TORCH_CHECK(t.numel() == 0 || t.const_data_ptr() != nullptr, kOp, ": ", name, " has no memory");
}

}  // namespace

Tensor linear_int4_cpu(const Tensor& x, const Tensor& codes, const Tensor& scale, const Tensor& zero,
                       const std::optional<Tensor>& bias) {
  LinearInt4 work{};
  work.dtype = dtype_of(x, kOp, "x");
  STD_TORCH_CHECK(x.dim() >= 1 && codes.dim() == 2 && scale.dim() == 2, kOp, ": x must have a dimension, weights two");
  work.k = x.size(x.dim() - 1), work.n = codes.size(0);
  check_rows(codes, x, ScalarType::Byte, work.n, "codes");
  check_rows(scale, x, ScalarType::Half, work.n, "scale");
  check_rows(zero, x, ScalarType::Half, work.n, "zero");
  const int64_t groups = scale.size(1);
  STD_TORCH_CHECK(groups >= 1 && zero.size(1) == groups && 2 * codes.size(1) == work.k && work.k % groups == 0 &&
                      work.k / groups % kRun == 0,
                  kOp, ": codes must have half as many bytes as x has numbers, and groups must be a multiple of 32");
  check_bias(bias, x, work.n, kOp, "bias");
  work.group = work.k / groups;
  work.codes = static_cast<const uint8_t*>(codes.const_data_ptr()), work.code_stride = codes.stride(0);
  work.scale = static_cast<const uint16_t*>(scale.const_data_ptr()), work.scale_stride = scale.stride(0);
  work.zero = static_cast<const uint16_t*>(zero.const_data_ptr()), work.zero_stride = zero.stride(0);
  return run_expanded(
      work, x, bias,
      ExpandedKernels<LinearInt4>{GOSSAMER_CPU_KERNEL(linear_int4_pack), GOSSAMER_CPU_KERNEL(linear_int4),
                                  GOSSAMER_CPU_KERNEL(dequantize_int4)});
}

}  // namespace gossamer
