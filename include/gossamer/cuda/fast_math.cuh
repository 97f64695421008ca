#pragma once

#include "gossamer/common.h"

namespace gossamer::cuda {

// Special functions of one instruction each (2 and 1 ulp). Flushing subnormal numbers to zero saves
// the rescaling around them; where they would matter here the result is below 2e-37.
struct FastMath {
  GOSSAMER_INLINE float abs(float x) { return fabsf(x); }
  GOSSAMER_INLINE float negative(float x, float yes, float no) { return x < 0.0f ? yes : no; }
  GOSSAMER_INLINE float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  GOSSAMER_INLINE float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  GOSSAMER_INLINE float exp(float x) { return exp2(x * 1.4426950408889634f); }
  GOSSAMER_INLINE float gauss(float x) { return exp2(-0.7213475204444817f * (x * x)); }
};

}  // namespace gossamer::cuda
