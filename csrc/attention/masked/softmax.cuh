// Online softmax of a warp over 16 query rows, in the layout of the tensor cores: lane (g, t) = (lane / 4, lane % 4)
// has of rows g and g + 8 the keys 8 n + 2 t and 8 n + 2 t + 1.
#pragma once

#include "attention/masked/work.cuh"
#include "attention/shared/mma.cuh"
#include "attention/shared/softmax.cuh"

namespace gossamer::cuda {

// Which keys of a tile, or of a part of one, this lane's two rows see.
template <int Keys>
struct SeenKeys {
  static constexpr int kWords = (Keys + 31) / 32;
  uint32_t words[2][kWords];
  int kind;  // of the tile; negative: all keys

  // `bits`: the first pattern's, of this lane's first row.
  template <int TileQ>
  __device__ __forceinline__ void load(const int* bits, int kind_) {
    kind = kind_;
    if (kind < 0) return;
    const int* line = bits + static_cast<int64_t>(kind) * (TileQ * kWords);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kWords == 1) {
        words[i][0] = __ldg(line + 8 * i);
      } else {
        const int2 pair = __ldg(reinterpret_cast<const int2*>(line + 8 * i * kWords));
        words[i][0] = pair.x, words[i][1] = pair.y;
      }
    }
  }
  // Keys Part * number and so on.
  template <int Part>
  __device__ __forceinline__ SeenKeys<Part> part(int number) const {
    SeenKeys<Part> found;
    found.kind = kind;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (Part == Keys) {
#pragma unroll
        for (int word = 0; word < kWords; ++word) found.words[i][word] = words[i][word];
      } else {
        const int word = number * Part / 32;
        found.words[i][0] = (kWords == 1 || word == 0 ? words[i][0] : words[i][kWords - 1]) >> (number * Part % 32);
        if constexpr (Part < 32) found.words[i][0] &= (1u << Part) - 1;
      }
    }
    return found;
  }
  __device__ __forceinline__ bool all() const { return kind < 0; }
  // Whether some row of the warp sees some key: often 16 rows in a row see nothing of a tile.
  __device__ __forceinline__ bool any() const {
    uint32_t seen = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) seen |= words[0][i] | words[1][i];
    return __any_sync(~0u, kind < 0 || seen != 0);
  }
};

template <int Keys>
struct MaskedScores {
  static constexpr int kBlocks = Keys / 8;
  float s[kBlocks][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
    }
  }
  __device__ __forceinline__ void bend(const MaskedWork& w) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = w.before * s[n][i];
        // tanh(x) = 1 - 2 / (e^2x + 1), which is off by 1e-7 at most; the GPU's own is by 5e-4.
        s[n][i] = w.cap > 0.0f ? w.cap * (1.0f - __fdividef(2.0f, exp2_approx(2.0f * kLog2e * x) + 1.0f)) : x;
      }
    }
  }
  __device__ __forceinline__ void hide(const SeenKeys<Keys>& seen, int t) {
#pragma unroll
    for (int word = 0; word < SeenKeys<Keys>::kWords; ++word) {
      const uint32_t rows[2] = {seen.words[0][word] >> 2 * t, seen.words[1][word] >> 2 * t};
#pragma unroll
      for (int n = 0; n < min(4, kBlocks); ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& x = s[4 * word + n][i];
          x = rows[i / 2] & (1u << (8 * n + i % 2)) ? x : -INFINITY;
        }
      }
    }
  }
  __device__ __forceinline__ float top(int row) const {
    float high = fmaxf(s[0][2 * row], s[0][2 * row + 1]);
#pragma unroll
    for (int n = 1; n < kBlocks; ++n) high = fmaxf(high, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
    return high;
  }
};

// What a warp has seen of its rows: sums of weighted values, maxima, sums of weights.
template <int D>
struct MaskedState {
  static constexpr int kBlocks = D / 8;
  float out[kBlocks][4];  // channels 8 n + 2 t, + 1 of row g, then of row g + 8
  float top[2];
  float sum[2];  // of this lane's keys, until `finish`

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = 0.0f;
    }
    top[0] = top[1] = kNothing;
    sum[0] = sum[1] = 0.0f;
  }
  __device__ __forceinline__ void raise(float (&high)[2]) {
    float keep[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 1));
      high[i] = fmaxf(high[i], __shfl_xor_sync(~0u, high[i], 2));
      high[i] = fmaxf(high[i], top[i]);
      keep[i] = exp2_approx(top[i] - high[i]);
      top[i] = high[i];
      sum[i] *= keep[i];
    }
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      out[n][0] *= keep[0], out[n][1] *= keep[0], out[n][2] *= keep[1], out[n][3] *= keep[1];
    }
  }
  // Scores become weights. Maxima rise only by more than kSlack: see shared/softmax.cuh.
  template <int Keys>
  __device__ __forceinline__ void weigh(MaskedScores<Keys>& x, float factor) {
    float high[2] = {x.top(0) * factor, x.top(1) * factor};
    if (__any_sync(~0u, high[0] > top[0] + kSlack || high[1] > top[1] + kSlack)) raise(high);
#pragma unroll
    for (int n = 0; n < Keys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x.s[n][i] = exp2_approx(__fmaf_rn(x.s[n][i], factor, -top[i / 2]));
        sum[i / 2] += x.s[n][i];
      }
    }
  }
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
  }
};

// Natural logarithm of a sum of weights relative to 2^top.
GOSSAMER_INLINE float log_of_sum(float top, float sum) {
  return sum == 0.0f ? -INFINITY : (top + __log2f(sum)) * (1.0f / kLog2e);
}

}  // namespace gossamer::cuda
