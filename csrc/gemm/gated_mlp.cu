#include "gemm/forward.h"
#include "gemm/hopper/launch.cuh"
#include "gemm/mlp.h"
#include "gemm/skinny/launch.cuh"
#include "gemm/torch_linear.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "gated_mlp";

using cuda::Sharing;

// Halves of 256 x 192 would gain a little where rows have more than 16 KiB, but each instance takes time to compile.
template <class T, Activation A>
void launch_as(Gemm& gemm, bool wide) {
  using Epilogue = cuda::GatedEpilogue<T, A>;
  if (wide) return launch_gemm<cuda::GemmTraits<T, Epilogue, Sharing::wide_tiles>>(gemm);
  launch_gemm<cuda::GemmTraits<T, Epilogue, Sharing::tiles>>(gemm);
}

template <class T>
void launch(Gemm& gemm, Activation activation) {
  const bool wide = sharing_for(gemm) != Sharing::tiles;
  if (activation == Activation::silu) return launch_as<T, Activation::silu>(gemm, wide);
  if (activation == Activation::gelu) return launch_as<T, Activation::gelu>(gemm, wide);
  launch_as<T, Activation::gelu_tanh>(gemm, wide);
}

// activation(x gate^T + bias) * (x up^T + bias) [rows, m] of many rows: one kernel.
Tensor hidden_of(const Tensor& x, const Tensor& gate_up, const std::optional<Tensor>& bias, Activation activation) {
  const int64_t hidden = gate_up.size(0) / 2, k = gate_up.size(1);
  const Rows rows = aligned_rows(x);
  const std::optional<Tensor> dense_bias = dense(bias);
  const Tensor out = empty_contiguous(x, {rows.count, hidden});
  const bool half = dtype_of(x, kOp, "x") == DType::f16;
  Gemm gemm{};
  gemm.op = kOp;
  set_device(gemm, x);
  gemm.in = gemm.out = half ? MatrixType::f16 : MatrixType::bf16;
  gemm.a = {rows.tensor.const_data_ptr(), rows.count, k, rows.stride * 2};
  gemm.b = gemm.up = matrix_of(gate_up);
  gemm.b.rows = gemm.up.rows = hidden;  // TMA reads zeros beyond gate's, not rows of up
  gemm.up.data = static_cast<const uint8_t*>(gemm.b.data) + hidden * gemm.b.stride;
  gemm.c = {out.const_data_ptr(), rows.count, hidden, hidden * 2};
  gemm.work.bias = data_of(dense_bias);
  half ? launch<__half>(gemm, activation) : launch<__nv_bfloat16>(gemm, activation);
  return out;
}

}  // namespace

Tensor gated_mlp_cuda(const Tensor& x, const Tensor& gate_up, const Tensor& down,
                      const std::optional<Tensor>& gate_up_bias, const std::optional<Tensor>& down_bias,
                      std::string activation) {
  check_gated_mlp(x, gate_up, down, gate_up_bias, down_bias, activation);
  const Activation between = parse_activation(kOp, activation);
  const cuda::DeviceGuard guard(x.get_device_index());
  const int64_t rows = x.numel() / gate_up.size(1), n = down.size(0);
  if (skinny_takes(rows, gate_up, true) && skinny_takes(rows, down)) {
    return skinny_gemms(kOp, x, {gate_up, gate_up_bias, between, true}, {down, down_bias});
  }
  // Rows of results are multiples of 16 bytes, too.
  const bool gated = x.element_size() == 2 && gate_up.size(0) % 16 == 0 && n > 0 && takes(x, gate_up);
  if (!gated) return call_triton("gossamer::gated_mlp", x, gate_up, down, gate_up_bias, down_bias, activation);
  // Down by cuBLAS: 1.48 ms on an H200 for 8192 rows of 14,336 and n = 4096, where the kernel takes 1.56.
  const Tensor out = torch_linear(hidden_of(x, gate_up, gate_up_bias, between), down, dense(down_bias));
  if (x.dim() == 2) return out;
  std::vector<int64_t> sizes(x.dim(), n);
  for (int64_t d = 0; d + 1 < x.dim(); ++d) sizes[d] = x.size(d);
  return torch::stable::view(out, sizes);
}

}  // namespace gossamer
