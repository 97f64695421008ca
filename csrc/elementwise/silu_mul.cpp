#include "silu_mul.h"

#include "silu_mul.kernel.h"

namespace gossamer {

Tensor silu_mul_cpu(const Tensor& x) {
  const SiluMulCall call = prepare_silu_mul(x);
  const char* first = static_cast<const char*>(call.x.const_data_ptr());
  const SiluMul work{
      call.dtype, call.shape, {first, first + call.width * call.x.element_size()}, call.out.mutable_data_ptr()};
  const auto kernel = GOSSAMER_CPU_KERNEL(silu_mul);
  constexpr int64_t grain = 8192;  // about 4 us of work: less is not worth a thread
  torch::stable::parallel_for(0, call.shape.numel, grain,
                              [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return call.out;
}

}  // namespace gossamer
