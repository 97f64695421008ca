#include "bias_act.h"

#include "bias_act.kernel.h"

namespace gossamer {

Tensor bias_act_cpu(const Tensor& x, std::optional<Tensor> bias, std::string activation) {
  const BiasActCall call = prepare_bias_act(x, bias, activation);
  const BiasAct work{call.dtype,
                     call.activation,
                     call.has_bias,
                     call.shape,
                     {call.x.const_data_ptr(), call.bias.const_data_ptr()},
                     call.out.mutable_data_ptr()};
  const auto kernel = GOSSAMER_CPU_KERNEL(bias_act);
  constexpr int64_t grain = 4096;  // about 4 us of work: less is not worth a thread
  torch::stable::parallel_for(0, call.shape.numel, grain,
                              [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return call.out;
}

}  // namespace gossamer
