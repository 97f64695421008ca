// Online softmax of a warp whose query rows are columns of its products (see codes_warp.cuh).
//
// Lane (g, t) = (lane / 4, lane % 4) holds of each set of 8 rows the rows 2 t and 2 t + 1: of scores for tokens g, g +
// 8, ..., of sums for channels g, g + 8, ... So a row's maximum is known to all lanes that need it.
#pragma once

#include "attention/decode/code_operands.cuh"
#include "attention/shared/softmax.cuh"

namespace gossamer::cuda {

// Scales of V times `unit` are at most this: weights, up to 2^kSlack, times them fit float16.
constexpr float kMostUnits = 64.0f;
constexpr float kLeastScale = 0x1p-14f;  // units are float16 too

template <int D, int Sets>
struct CodesState {
  using Scores = float[2][Sets][4];
  using Weights = uint32_t[2][Sets][2];
  float out[D / 16][Sets][4];  // sums of weighted codes: rows 2 t, 2 t + 1 of channel g, then of g + 8
  float centre[Sets][4];       // what is added to them in the end: of all channels, or of group g
  float top[Sets][2], sum[Sets][2];
  float unit;  // what V's scales were multiplied with

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < D / 4 * Sets; ++i) out[i / 4 / Sets][i / 4 % Sets][i % 4] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * Sets; ++i) centre[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) top[i / 2][i % 2] = kNothing, sum[i / 2][i % 2] = 0.0f;
    unit = 1.0f;
  }
  // Before the first block whose values have scales.
  __device__ __forceinline__ void forget_unit() { unit = 0x1p40f; }

  // Rescales what was summed so far for scales up to the largest `most` of any lane.
  __device__ __forceinline__ void take_unit(float most) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    // 2 to the power of minus its exponent, within what float16 holds.
    const float fresh = __uint_as_float((254u << 23) - (__float_as_uint(fminf(most, 0x1p14f)) & 0x7f800000u));
    const float ratio = fresh / unit;
#pragma unroll
    for (int i = 0; i < D / 4 * Sets; ++i) out[i / 4 / Sets][i / 4 % Sets][i % 4] *= ratio;
    unit = fresh;
  }

  // Takes up higher maxima and rescales what was summed so far; the whole warp together.
  __device__ __forceinline__ void raise(const Scores& x, const float (&of_k)[4], const float (&of_row)[Sets][2]) {
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) {
      const int set = i / 2, row = i % 2;
      float high = top[set][row];
#pragma unroll
      for (int j = 0; j < 4; ++j) high = fmaxf(high, x[j / 2][set][row + 2 * (j % 2)] * (of_k[j] * of_row[set][row]));
#pragma unroll
      for (int d = 4; d <= 16; d *= 2) high = fmaxf(high, __shfl_xor_sync(~0u, high, d));
      const float keep = exp2_approx(top[set][row] - high);
      top[set][row] = high;
      sum[set][row] *= keep;
#pragma unroll
      for (int p = 0; p < D / 16; ++p) out[p][set][row] *= keep, out[p][set][row + 2] *= keep;
      centre[set][row] *= keep, centre[set][row + 2] *= keep;
    }
  }

  // Scores, of which of_k (by token) and of_row are factors yet, to weights times of_v, as an operand.
  template <class T>
  __device__ __forceinline__ void weigh(const Scores& x, const float (&of_k)[4], const float (&of_row)[Sets][2],
                                        const float (&of_v)[4], Weights& weights) {
    Scores above;  // of the maxima
    const auto subtract = [&] {
      float most = -1.0f;
#pragma unroll
      for (int i = 0; i < 8 * Sets; ++i) {
        const int m = i / 4 / Sets, set = i / 4 % Sets, c = i % 4;
        above[m][set][c] = fmaf(x[m][set][c], of_k[2 * m + c / 2] * of_row[set][c % 2], -top[set][c % 2]);
        most = fmaxf(most, above[m][set][c]);
      }
      return most;
    };
    if (__any_sync(~0u, subtract() > kSlack)) {
      raise(x, of_k, of_row);
      subtract();
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        float p[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          p[c] = exp2_approx(above[m][set][c]);
          sum[set][c % 2] += p[c];
          p[c] *= of_v[2 * m + c / 2];
        }
        weights[m][set][0] = transposed(pack2<T>(p[0], p[1]));
        weights[m][set][1] = transposed(pack2<T>(p[2], p[3]));
      }
    }
  }

  // Sums of all lanes' tokens.
  __device__ __forceinline__ void add_up() {
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) {
#pragma unroll
      for (int d = 4; d <= 16; d *= 2) sum[i / 2][i % 2] += __shfl_xor_sync(~0u, sum[i / 2][i % 2], d);
    }
  }
};

}  // namespace gossamer::cuda
