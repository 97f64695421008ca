#include "element_wise_mul_add.h"

#include "element_wise_mul_add.kernel.h"

namespace gossamer {

Tensor element_wise_mul_add_cpu(const Tensor& a, const Tensor& b, const Tensor& c) {
  Elementwise<3> call = prepare_elementwise<3>({a, b, c}, "element_wise_mul_add");
  copy_unsuitable_rows(call);
  const MulAdd work{call.dtype,
                    call.shape,
                    {call.in[0].const_data_ptr(), call.in[1].const_data_ptr(), call.in[2].const_data_ptr()},
                    call.out.mutable_data_ptr()};
  const auto kernel = GOSSAMER_CPU_KERNEL(element_wise_mul_add);
  constexpr int64_t grain = 32768;  // about 10 us of memory traffic
  torch::stable::parallel_for(0, call.shape.numel, grain,
                              [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return call.out;
}

}  // namespace gossamer
