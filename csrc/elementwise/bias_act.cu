#include "bias_act.h"
#include "gossamer/cuda/activation.cuh"
#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/elementwise.cuh"

namespace gossamer {
namespace {

template <class T, Activation A, int N>
struct BiasThenAct {
  static constexpr int rows_per_thread = A == Activation::relu || A == Activation::relu2 ? 1 : 2;
  __device__ float operator()(const float (&in)[N]) const {
    float x = in[0];
    if constexpr (N == 2) x += in[1];
    return cuda::activate<T, A>(x);
  }
};

// Straight to the two kernels that rows of x and one row of bias need: all the others, for every activation, would make
// the library 3 MB larger.
template <Activation A, int N, int V, class T>
void launch(cuda::ElementwiseArgs<T, N> args, cudaStream_t stream) {
  args.shape.size[0] /= V;
  args.shape.numel /= V;
  args.rows = args.shape.size[1];
  for (int k = 0; k < N; ++k) args.shape.stride[k][0] = V;
  const BiasThenAct<T, A, N> f{};
  if constexpr (N == 1) {
    if (args.shape.dims == 1) {
      cuda::launch_flat<V>(args, f, stream);
    } else {
      cuda::launch_rows<V, 0u, cuda::Small::same_row>(args, f, stream);
    }
  } else {
    constexpr unsigned bias_is_small = 0b10;
    cuda::launch_rows<V, bias_is_small, cuda::Small::same_row>(args, f, stream);
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <Activation A, int N, class T>
void launch_packed(const BiasActCall& call, cudaStream_t stream) {
  const Tensor* in[2] = {&call.x, &call.bias};
  cuda::ElementwiseArgs<T, N> args;
  args.out = static_cast<T*>(call.out.mutable_data_ptr());
  args.shape.dims = call.shape.dims;
  args.shape.numel = call.shape.numel;
  for (int d = 0; d < 2; ++d) args.shape.size[d] = call.shape.size[d];
  for (int k = 0; k < N; ++k) {
    args.in[k] = static_cast<const T*>(in[k]->const_data_ptr());
    for (int d = 0; d < 2; ++d) args.shape.stride[k][d] = call.shape.stride[k][d];
    args.last_offset[k] = args.shape.last_offset(k);
  }
  constexpr int length = cuda::vector_length<T>;
  if (cuda::can_pack(args, length)) {
    launch<A, N, length>(args, stream);
  } else {
    launch<A, N, 1>(args, stream);
  }
}

}  // namespace

Tensor bias_act_cuda(const Tensor& x, std::optional<Tensor> bias, std::string activation) {
  const BiasActCall call = prepare_bias_act(x, bias, activation);
  if (call.shape.numel == 0) return call.out;
  const cuda::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(x);
  cuda::for_dtype(call.dtype, [&](auto element) {
    using T = decltype(element);
    for_activation(call.activation, [&](auto choice) {
      constexpr Activation kind = decltype(choice)::value;
      if (call.has_bias) {
        launch_packed<kind, 2, T>(call, stream);
      } else {
        launch_packed<kind, 1, T>(call, stream);
      }
    });
  });
  return call.out;
}

}  // namespace gossamer
