// Online softmax of a warpgroup over 64 queries and tiles of 128 keys, in the layout of wgmma: lane (g, t) = (lane / 4,
// lane % 4) of warp n has of queries 16 n + g and + 8 the keys 8 i + 2 t and + 1, as scores 4 i to 4 i + 3.
#pragma once

#include "attention/prefill/keys.cuh"
#include "attention/shared/mma.cuh"
#include "attention/shared/softmax.cuh"

namespace gossamer::cuda {

// What has been seen of the two queries of a thread.
struct PrefillState {
  float top[2];   // maxima, in powers of 2
  float sum[2];   // of weights relative to 2^top; of this thread's keys, until `finish`
  float keep[2];  // what sums of values must be multiplied by, where `raised`

  __device__ __forceinline__ void clear() {
    top[0] = top[1] = kNothing;
    sum[0] = sum[1] = 0.0f;
  }

  // Whether some maximum of the warp rose, by more than kSlack: see shared/softmax.cuh. highs: of this thread's scores.
  __device__ __forceinline__ bool raise(float (&high)[2]) {
    if (!__any_sync(~0u, high[0] > top[0] + kSlack || high[1] > top[1] + kSlack)) return false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 1));
      high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 2));
      high[i] = fmaxf(high[i], top[i]);
      keep[i] = exp2_approx(top[i] - high[i]);
      top[i] = high[i];
      sum[i] *= keep[i];
    }
    return true;
  }

  // Scores become weights. Returns whether what was added up before must be multiplied by `keep`.
  __device__ __forceinline__ bool weigh(float (&s)[64], float factor) {
    float high[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // two chains each: one would wait for itself
      float even = fmaxf(s[2 * i], s[2 * i + 1]), odd = fmaxf(s[4 + 2 * i], s[4 + 2 * i + 1]);
#pragma unroll
      for (int n = 2; n < 16; n += 2) {
        even = fmaxf(even, fmaxf(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]));
        odd = fmaxf(odd, fmaxf(s[4 * n + 4 + 2 * i], s[4 * n + 4 + 2 * i + 1]));
      }
      high[i] = fmaxf(even, odd) * factor;
    }
    const bool raised = raise(high);
#pragma unroll
    for (int n = 0; n < 64; ++n) {
      s[n] = exp2_approx(__fmaf_rn(s[n], factor, -top[n % 4 / 2]));
      sum[n % 4 / 2] += s[n];
    }
    return raised;
  }

  // 1 / sum of each query, 0 where it saw nothing.
  __device__ __forceinline__ void finish(float (&inverse)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
      inverse[i] = sum[i] == 0.0f ? 0.0f : __fdividef(1.0f, sum[i]);
    }
  }
};

// Hides what is outside of these intervals of keys, counted from the tile's begin.
GOSSAMER_INLINE void hide(float (&s)[64], const Interval (&seen)[2]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int before = 2 * t - seen[i].low;
    const unsigned count = greater(seen[i].high - seen[i].low, 0);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float& x = s[4 * n + 2 * i + k];
        x = static_cast<unsigned>(before + 8 * n + k) < count ? x : -INFINITY;
      }
    }
  }
}

}  // namespace gossamer::cuda
