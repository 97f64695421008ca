// What online softmax on tensor cores takes, whatever the layout of its scores.
#pragma once

#include "gossamer/common.h"

namespace gossamer::cuda {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kNothing = -1e30f;  // a maximum of nothing: finite, so that differences are no NaN
// A new maximum is taken up only when it is this much higher: weights stay below 2^8, which float16 holds, and the
// accumulators are rescaled a few times per sequence, not at every other block.
constexpr float kSlack = 8.0f;

GOSSAMER_INLINE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gossamer::cuda
