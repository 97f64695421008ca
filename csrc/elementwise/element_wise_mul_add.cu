#include "element_wise_mul_add.h"
#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/elementwise.cuh"

namespace gossamer {
namespace {

struct MultiplyAdd {
  static constexpr int rows_per_thread = 1;
  __device__ float operator()(const float (&in)[3]) const { return fmaf(in[0], in[1], in[2]); }
};

}  // namespace

Tensor element_wise_mul_add_cuda(const Tensor& a, const Tensor& b, const Tensor& c) {
  const Elementwise<3> call = prepare_elementwise<3>({a, b, c}, "element_wise_mul_add");
  cuda::for_dtype(call.dtype, [&](auto element) {
    constexpr unsigned b_and_c_are_small = 0b110;
    cuda::launch_elementwise<decltype(element), b_and_c_are_small>(call, MultiplyAdd{});
  });
  return call.out;
}

}  // namespace gossamer
