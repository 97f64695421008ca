#include "fused_add_gelu.h"
#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/elementwise.cuh"
#include "gossamer/cuda/fast_math.cuh"
#include "gossamer/math/gelu.h"

namespace gossamer {
namespace {

// 16-bit results get the shorter polynomial: at 4 bytes per element an H200 has about 30 instruction
// slots for each before arithmetic, not memory, sets the time.
template <class T>
struct AddGeluErf {
  static constexpr int rows_per_thread = 2;
  using Fit = std::conditional_t<sizeof(T) == 4, math::TailFit8, math::TailFit6>;
  __device__ float operator()(const float (&in)[2]) const { return math::gelu_erf<cuda::FastMath, Fit>(in[0] + in[1]); }
};

struct AddGeluTanh {
  static constexpr int rows_per_thread = 2;
  __device__ float operator()(const float (&in)[2]) const { return math::gelu_tanh<cuda::FastMath>(in[0] + in[1]); }
};

}  // namespace

Tensor fused_add_gelu_cuda(const Tensor& x, const Tensor& bias, std::string approximate) {
  const Elementwise<2> call = prepare_fused_add_gelu(x, bias, approximate);
  cuda::for_dtype(call.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr unsigned bias_is_small = 0b10;
    if (approximate == "tanh") {
      cuda::launch_elementwise<T, bias_is_small>(call, AddGeluTanh{});
    } else {
      cuda::launch_elementwise<T, bias_is_small>(call, AddGeluErf<T>{});
    }
  });
  return call.out;
}

}  // namespace gossamer
