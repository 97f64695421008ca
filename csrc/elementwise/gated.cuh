// The launch that silu_mul and gelu_mul share.
#pragma once

#include "gated.h"
#include "gossamer/cuda/activation.cuh"
#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/elementwise.cuh"

namespace gossamer {
namespace {

template <class T, Activation A>
struct Gate {
  static constexpr int rows_per_thread = 1;
  __device__ float operator()(const float (&in)[2]) const { return cuda::activate<T, A>(in[0]) * in[1]; }
};

// The halves as two inputs, by address: a view of each would take the host longer than a small launch.
template <class T>
cuda::ElementwiseArgs<T, 2> halves(const GatedCall& call) {
  cuda::ElementwiseArgs<T, 2> args;
  const T* x = static_cast<const T*>(call.x.const_data_ptr());
  args.in[0] = x;
  args.in[1] = x + call.width;
  args.out = static_cast<T*>(call.out.mutable_data_ptr());
  args.shape = call.shape;
  for (int k = 0; k < 2; ++k) args.last_offset[k] = call.shape.last_offset(k);
  return args;
}

template <Activation A>
Tensor gated_cuda(const char* op, const Tensor& x) {
  const GatedCall call = prepare_gated(op, x);
  if (call.shape.numel == 0) return call.out;
  const cuda::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(x);
  cuda::for_dtype(call.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int length = cuda::vector_length<T>;
    const cuda::ElementwiseArgs<T, 2> args = halves<T>(call);
    if (cuda::can_pack(args, length)) {
      cuda::launch_packs<length, 0u>(args, Gate<T, A>{}, stream);
    } else {
      cuda::launch_packs<1, 0u>(args, Gate<T, A>{}, stream);
    }
  });
  return call.out;
}

}  // namespace
}  // namespace gossamer
