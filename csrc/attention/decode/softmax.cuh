// Online softmax of a warp, over scores and weights in the layouts of the tensor cores.
//
// Rows are query rows, four to a set. Lane (g, t) = (lane / 4, lane % 4) holds of each set the rows g / 4 and
// g / 4 + 2, and of a block the tokens 8 t + g % 4 and 8 t + 4 + g % 4.
#pragma once

#include "attention/shared/mma.cuh"
#include "attention/shared/softmax.cuh"

namespace gossamer::cuda {

// Where the lanes of a warp exchange weights: in shared memory 64 bytes for each row, then as many of zeros.
template <int Sets>
struct Exchange {
  static constexpr int kBytes = (4 * Sets + 1) * 64;
  uint32_t write, read;

  __device__ __forceinline__ void init(uint32_t base, int lane) {
    const int g = lane / 4, t = lane % 4;
    if (lane < 16) store_shared(base + 4 * Sets * 64 + lane * 4, 0);
    write = pinned(base + g / 4 * 64 + t * 16 + g % 4 * 4);
    read = base + min(g, 4 * Sets) * 64 + t * 16;
  }
  // Of row g: the tokens 8 t + c and 8 t + 4 + c in word c.
  __device__ __forceinline__ uint4 weights() const { return load_shared4(read); }
};

template <int Sets>
struct Scores {
  float s[Sets][4];  // [set][row 0: two tokens, row 1: two tokens], times log2(e)
};

// What a warp has seen: sums of weighted values (channels 16 n + g, the same, + 8, the same; rows 2 t, 2 t + 1, 2 t,
// 2 t + 1), maxima and sums of weights.
template <int D, int Sets>
struct State {
  static constexpr int kTiles = D / 16;
  float out[kTiles][4];
  float top[Sets][2];
  float sum[Sets][2];  // of this lane's tokens; the lanes are added up at the end

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = 0.0f;
    }
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
      top[set][0] = top[set][1] = kNothing;
      sum[set][0] = sum[set][1] = 0.0f;
    }
  }

  // Takes up higher maxima and rescales what was summed so far; the whole warp together.
  __device__ __forceinline__ void raise(const Scores<Sets>& x, int lane) {
    float factor[Sets][2];
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float high = fmaxf(top[set][i], fmaxf(x.s[set][2 * i], x.s[set][2 * i + 1]));
#pragma unroll
        for (int d = 1; d <= 8; d *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, d));
        factor[set][i] = exp2_approx(top[set][i] - high);
        top[set][i] = high;
        sum[set][i] *= factor[set][i];
      }
    }
    // Row r of a set is with the lanes 16 (r % 2) onwards, as their row r / 2; this lane's sums are of rows 2 t, 2 t
    // + 1.
    const int t = lane % 4;
    float mine[2] = {1.0f, 1.0f};
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float even = __shfl_sync(~0u, factor[set][half], 0), odd = __shfl_sync(~0u, factor[set][half], 16);
        if (t == 2 * set + half) mine[0] = even, mine[1] = odd;
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      out[n][0] *= mine[0], out[n][1] *= mine[1], out[n][2] *= mine[0], out[n][3] *= mine[1];
    }
  }

  // Weights of a block into shared memory.
  template <class T>
  __device__ __forceinline__ void weigh(const Scores<Sets>& x, const Exchange<Sets>& exchange, int lane) {
    bool higher = false;
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
#pragma unroll
      for (int i = 0; i < 4; ++i) higher |= x.s[set][i] > top[set][i / 2] + kSlack;
    }
    if (__any_sync(~0u, higher)) raise(x, lane);
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float first = exp2_approx(x.s[set][2 * i] - top[set][i]);
        const float second = exp2_approx(x.s[set][2 * i + 1] - top[set][i]);
        sum[set][i] += first + second;
        store_shared(exchange.write + (4 * set + 2 * i) * 64, pack2<T>(first, second));
      }
    }
    __syncwarp();
  }
};

}  // namespace gossamer::cuda
