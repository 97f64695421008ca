#include "rope/rope.h"

namespace gossamer {
namespace {

// Before anything is computed. One pass without a branch per position, for a decode step calls this in every layer.
void check_positions(const Rope& work) {
  int64_t low = 0, high = 0;
  for (int64_t i = 0; i < work.tokens; ++i) {
    const int64_t position = work.positions[i * work.position_stride];
    low = position < low ? position : low;
    high = position > high ? position : high;
  }
  STD_TORCH_CHECK(low >= 0 && high < work.max_positions, "rope: a position is ", low < 0 ? low : high,
                  "; must be 0 to ", work.max_positions - 1);
}

}  // namespace

Tensor rope_cpu(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved) {
  RopeCall call = prepare_rope(x, positions, cos, sin, interleaved);
  check_positions(call.work);
  if (call.work.channel_stride != 1 && x.numel() > 0) point_to(call, expanded_copy(x, x.sizes()));
  const auto kernel = GOSSAMER_CPU_KERNEL(rope);
  const int64_t grain = 16384 / call.work.head_dim + 1;  // rows; about 4 us of work: less is not worth a thread
  torch::stable::parallel_for(0, call.work.tokens * call.work.heads, grain,
                              [&](int64_t begin, int64_t end) { kernel(call.work, begin, end); });
  return call.out;
}

}  // namespace gossamer
