#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/elementwise.cuh"
#include "gossamer/cuda/fast_math.cuh"
#include "gossamer/math/silu.h"
#include "silu_mul.h"

namespace gossamer {
namespace {

struct SiluTimes {
  __device__ float operator()(const float (&in)[2]) const { return math::silu<cuda::FastMath>(in[0]) * in[1]; }
};

// The halves as two inputs, by address: a view of each would take the host longer than a small launch.
template <class T>
cuda::ElementwiseArgs<T, 2> halves(const SiluMulCall& call) {
  cuda::ElementwiseArgs<T, 2> args;
  const T* x = static_cast<const T*>(call.x.const_data_ptr());
  args.in[0] = x;
  args.in[1] = x + call.width;
  args.out = static_cast<T*>(call.out.mutable_data_ptr());
  args.shape = call.shape;
  for (int k = 0; k < 2; ++k) args.last_offset[k] = call.shape.last_offset(k);
  return args;
}

}  // namespace

Tensor silu_mul_cuda(const Tensor& x) {
  const SiluMulCall call = prepare_silu_mul(x);
  if (call.shape.numel == 0) return call.out;
  const cuda::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(x);
  cuda::for_dtype(call.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int length = cuda::vector_length<T>;
    const cuda::ElementwiseArgs<T, 2> args = halves<T>(call);
    if (cuda::can_pack(args, length)) {
      cuda::launch_packs<length, 0u>(args, SiluTimes{}, stream);
    } else {
      cuda::launch_packs<1, 0u>(args, SiluTimes{}, stream);
    }
  });
  return call.out;
}

}  // namespace gossamer
