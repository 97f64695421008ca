#include "rope/rope.h"

namespace gossamer {

// One pass without a branch per position, for a decode step calls this in every layer.
void check_positions(const char* op, const RopeRows& work) {
  int64_t low = 0, high = 0;
  for (int64_t i = 0; i < work.tokens; ++i) {
    const int64_t position = work.positions[i * work.position_stride];
    low = position < low ? position : low;
    high = position > high ? position : high;
  }
  STD_TORCH_CHECK(low >= 0 && high < work.max_positions, op, ": a position is ", low < 0 ? low : high,
                  "; must be 0 to ", work.max_positions - 1);
}

namespace {

// Rows of x where channels lie side by side, else of a copy.
void turn(RopeCall& call) {
  if (call.work.channel_stride != 1 && call.x.numel() > 0) point_to(call, expanded_copy(call.x, call.x.sizes()));
  const auto kernel = GOSSAMER_CPU_KERNEL(rope);
  const int64_t grain = 16384 / call.work.head_dim + 1;  // rows; about 4 us of work: less is not worth a thread
  torch::stable::parallel_for(0, call.work.tokens * call.work.heads, grain,
                              [&](int64_t begin, int64_t end) { kernel(call.work, begin, end); });
}

}  // namespace

Tensor rope_cpu(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved) {
  RopeCall call = prepare_rope("rope", x, positions, cos, sin, interleaved);
  check_positions("rope", call.work);
  write_to(call, empty_contiguous(x, x.sizes()));
  turn(call);
  return call.out;
}

void rope_inplace_cpu(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin,
                      bool interleaved) {
  RopeCall call = prepare_rope("rope_inplace", x, positions, cos, sin, interleaved);
  check_apart("rope_inplace", x);
  check_positions("rope_inplace", call.work);
  call.work.in_place = call.work.channel_stride == 1;
  write_to(call, call.work.in_place ? x : empty_contiguous(x, x.sizes()));
  turn(call);
  if (!call.work.in_place && x.numel() > 0) {
    Tensor target = x;
    torch::stable::copy_(target, call.out);
  }
}

Tensor rmsnorm_rope_cpu(const Tensor& x, const Tensor& weight, const Tensor& positions, const Tensor& cos,
                        const Tensor& sin, double eps, bool interleaved) {
  RopeCall call = prepare_rmsnorm_rope(x, weight, positions, cos, sin, eps, interleaved);
  check_positions("rmsnorm_rope", call.work);
  turn(call);
  return call.out;
}

}  // namespace gossamer
