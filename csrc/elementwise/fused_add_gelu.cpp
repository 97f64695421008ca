#include "fused_add_gelu.h"

#include "fused_add_gelu.kernel.h"

namespace gossamer {

Tensor fused_add_gelu_cpu(const Tensor& x, const Tensor& bias, std::string approximate) {
  Elementwise<2> call = prepare_fused_add_gelu(x, bias, approximate);
  copy_unsuitable_rows(call);
  const AddGelu work{call.dtype,
                     approximate == "tanh",
                     call.shape,
                     {call.in[0].const_data_ptr(), call.in[1].const_data_ptr()},
                     call.out.mutable_data_ptr()};
  const auto kernel = GOSSAMER_CPU_KERNEL(fused_add_gelu);
  constexpr int64_t grain = 4096;  // about 4 us of work: less is not worth a thread
  torch::stable::parallel_for(0, call.shape.numel, grain,
                              [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return call.out;
}

}  // namespace gossamer
