#include "scaled_softmax.h"

namespace gossamer {

Tensor scaled_softmax_cpu(const Tensor& x, double scale) {
  const ScaledSoftmaxCall call = prepare_scaled_softmax(x, scale);
  const ScaledSoftmax& work = call.work;
  const auto kernel = GOSSAMER_CPU_KERNEL(scaled_softmax);
  const int64_t grain = 4096 / (work.width + 1) + 1;  // rows; about 4 us of work: less is not worth a thread
  torch::stable::parallel_for(0, work.rows, grain, [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
  return call.out;
}

}  // namespace gossamer
