#include "gemm/forward.h"
#include "gemm/hopper/launch.cuh"
#include "gemm/linear_act.h"
#include "gemm/skinny/launch.cuh"

namespace gossamer {
namespace {

constexpr const char* kOp = "linear_act";

using cuda::Sharing;

template <class T, Activation A>
void launch_as(Gemm& gemm, Sharing sharing) {
  using Epilogue = cuda::ActivationEpilogue<T, A>;
  if (sharing == Sharing::rows) return launch_gemm<cuda::GemmTraits<T, Epilogue, Sharing::rows>>(gemm);
  if (sharing == Sharing::wide_tiles) return launch_gemm<cuda::GemmTraits<T, Epilogue, Sharing::wide_tiles>>(gemm);
  launch_gemm<cuda::GemmTraits<T, Epilogue, Sharing::tiles>>(gemm);
}

template <class T>
void launch(Gemm& gemm, Sharing sharing, Activation activation) {
  switch (activation) {
    case Activation::none:
      return launch_as<T, Activation::none>(gemm, sharing);
    case Activation::gelu:
      return launch_as<T, Activation::gelu>(gemm, sharing);
    case Activation::gelu_tanh:
      return launch_as<T, Activation::gelu_tanh>(gemm, sharing);
    case Activation::silu:
      return launch_as<T, Activation::silu>(gemm, sharing);
    case Activation::mish:
      return launch_as<T, Activation::mish>(gemm, sharing);
    case Activation::relu2:
      return launch_as<T, Activation::relu2>(gemm, sharing);
    case Activation::relu:
      return launch_as<T, Activation::relu>(gemm, sharing);
  }
}

}  // namespace

Tensor linear_act_cuda(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                       std::string activation) {
  check_linear_act(x, weight, bias);
  const Activation last = parse_activation(kOp, activation);
  const DType dtype = dtype_of(x, kOp, "x");
  const cuda::DeviceGuard guard(x.get_device_index());
  if (skinny_takes(x.numel() / weight.size(1), weight)) return skinny_gemm(kOp, x, {weight, bias, last});
  if (dtype == DType::f32 || !takes(x, weight)) return call_triton("gossamer::linear_act", x, weight, bias, activation);
  const int64_t n = weight.size(0), k = weight.size(1);
  Tensor out = empty_result(x, n);
  if (out.numel() == 0) return out;
  Gemm gemm{};
  gemm.op = kOp;
  set_device(gemm, x);
  const Rows rows = aligned_rows(x);
  const std::optional<Tensor> dense_bias = dense(bias);
  gemm.in = gemm.out = dtype == DType::f16 ? MatrixType::f16 : MatrixType::bf16;
  gemm.a = {rows.tensor.const_data_ptr(), rows.count, k, rows.stride * 2};
  gemm.b = matrix_of(weight);
  gemm.c = {out.const_data_ptr(), rows.count, n, n * 2};
  gemm.work.bias = data_of(dense_bias);
  const Sharing sharing = sharing_for(gemm);
  if (dtype == DType::f16) {
    launch<__half>(gemm, sharing, last);
  } else {
    launch<__nv_bfloat16>(gemm, sharing, last);
  }
  return out;
}

}  // namespace gossamer
