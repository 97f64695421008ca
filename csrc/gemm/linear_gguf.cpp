#include "gemm/linear_gguf.h"

#include <algorithm>
#include <utility>

#include "elementwise/silu_mul.h"
#include "gemm/cpu/linear_gguf.kernel.h"
#include "gemm/cpu/run_expanded.h"

namespace gossamer {
namespace {

constexpr int64_t kRun = 32;

// The next name of a list "a,b,c" from `at` on, which then is where the one after it begins.
GgufType next_type(const std::string& names, size_t& at, const char* op) {
  const size_t end = std::min(names.find(',', at), names.size());
  const std::string name = at <= names.size() ? names.substr(at, end - at) : "";
  at = end + 1;
  for (size_t i = 0; i < std::size(kGgufBlocks); ++i) {
    if (name == kGgufBlocks[i].name) return static_cast<GgufType>(i);
  }
  STD_TORCH_CHECK(false, op, ": unknown type of weights ", name);
  return GgufType::f32;
}

// Weights in a row of so many bytes; an error if they are no whole blocks and runs.
int64_t row_length(const Tensor& weight, GgufType type, const char* op) {
  STD_TORCH_CHECK(weight.scalar_type() == ScalarType::Byte && weight.dim() == 2, op,
                  ": weights must be uint8 [n, bytes]");
  STD_TORCH_CHECK(weight.numel() == 0 || weight.const_data_ptr() != nullptr, op, ": one of weights has no memory");
  STD_TORCH_CHECK(weight.size(1) >= 1 && (weight.size(1) == 1 || weight.stride(1) == 1), op,
                  ": rows of weights must be contiguous");
  const GgufBlock block = kGgufBlocks[static_cast<int>(type)];
  const int64_t k = weight.size(1) / block.bytes * block.weights;
  STD_TORCH_CHECK(weight.size(1) % block.bytes == 0 && k % kRun == 0, op, ": rows of weights are no whole blocks");
  return k;
}

GgufRows rows_of(const Tensor& weight, GgufType type) {
  return {type, weight.size(0), static_cast<const uint8_t*>(weight.const_data_ptr()), weight.stride(0)};
}

ExpandedKernels<LinearGguf> kernels() {
  return {GOSSAMER_CPU_KERNEL(linear_gguf_pack), GOSSAMER_CPU_KERNEL(linear_gguf),
          GOSSAMER_CPU_KERNEL(dequantize_gguf)};
}

}  // namespace

Tensor linear_gguf_cpu(const Tensor& x, std::vector<Tensor> weights, std::string types,
                       const std::optional<Tensor>& bias) {
  const char* op = "linear_gguf";
  LinearGguf work{};
  work.dtype = dtype_of(x, op, "x");
  STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) >= 1, op, ": the last dimension of x must be at least 1");
  work.k = x.size(x.dim() - 1);
  std::vector<GgufRows> rows;
  size_t at = 0;
  for (const Tensor& weight : weights) {
    const GgufType type = next_type(types, at, op);
    STD_TORCH_CHECK(row_length(weight, type, op) == work.k, op, ": weights must have rows as long as those of x");
    STD_TORCH_CHECK(weight.device() == x.device(), op, ": weights must be on the device of x");
    rows.push_back(rows_of(weight, type));
    work.n += weight.size(0);
  }
  STD_TORCH_CHECK(!weights.empty() && at == types.size() + 1, op, ": there must be a type for each of the weights");
  check_bias(bias, x, work.n, op, "bias");
  work.weights = rows.data(), work.count = static_cast<int64_t>(rows.size());
  return run_expanded(work, x, bias, kernels());
}

Tensor gated_mlp_gguf_cpu(const Tensor& x, std::vector<Tensor> gate_up, std::string gate_up_types,
                          std::vector<Tensor> down, std::string down_types, const std::optional<Tensor>& gate_up_bias,
                          const std::optional<Tensor>& down_bias) {
  const Tensor both = linear_gguf_cpu(x, std::move(gate_up), std::move(gate_up_types), gate_up_bias);
  return linear_gguf_cpu(silu_mul_cpu(both), std::move(down), std::move(down_types), down_bias);
}

Tensor dequantize_gguf_cpu(const Tensor& weight, std::string type, ScalarType dtype) {
  const char* op = "dequantize_gguf";
  size_t at = 0;
  const GgufType found = next_type(type, at, op);
  const int64_t sizes[] = {weight.size(0), row_length(weight, found, op)};
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::Half || dtype == ScalarType::BFloat16, op,
                  ": dtype must be float32, float16 or bfloat16");
  const bool wide = dtype == ScalarType::Float, half = dtype == ScalarType::Half;
  Tensor out = empty_contiguous(weight, {sizes, 2},
                                wide   ? aoti_torch_dtype_float32()
                                : half ? aoti_torch_dtype_float16()
                                       : aoti_torch_dtype_bfloat16());
  const GgufRows rows = rows_of(weight, found);
  LinearGguf work{};
  work.dtype = wide ? DType::f32 : half ? DType::f16 : DType::bf16;
  work.n = sizes[0], work.k = sizes[1], work.weights = &rows, work.count = 1;
  if (out.numel() > 0) expand_slab(work, kernels(), out.mutable_data_ptr(), 0, work.n);
  return out;
}

}  // namespace gossamer
