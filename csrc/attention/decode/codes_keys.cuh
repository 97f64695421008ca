// Q K^T of a warp and a block of dense codes, for each kind of scales.
#pragma once

#include "attention/decode/codes_formats.cuh"

namespace gossamer::cuda {

template <class Traits>
struct CodesKeys {
  static constexpr int D = Traits::D, Sets = Traits::Sets;
  using Scores = float[2][Sets][4];  // [tokens 16 m on][rows 8 set on]: rows 2 t, 2 t + 1 of tokens g, then of g + 8
  using Formats = typename Traits::Formats;
  using KTiles = typename Formats::KTiles;

  const DecodeParams& w;
  const CodesParams<D>& codes;
  const RowNumbers& numbers;
  int lane, g, t;
  uint32_t queries;  // the address of this lane's part in shared memory
  float middle[Sets][2];

  __device__ __forceinline__ uint32_t query(int tile, int set) const {
    return load_shared(queries + (tile * Sets + set) * 128);
  }
  __device__ __forceinline__ void multiply_queries(uint32_t block, Scores& x) const {
    uint32_t cells[4];
    for_pairs<Side::k, KTiles>(codes.k, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        const uint32_t q_low = query(2 * p, set), q_high = query(2 * p + 1, set);
        multiply_k<__half>(x[0][set], low, high, 0, q_low, q_high);
        multiply_k<__half>(x[1][set], low, high, 1, q_low, q_high);
      }
    });
  }

  // With a scale and a minimum per channel: queries are scaled instead.
  __device__ __forceinline__ void multiply_queries_by_channel(uint32_t block, Scores& x) const {
    uint32_t cells[4];
    float constant[Sets][4] = {};
    const uint32_t scales = block + w.main.k.scales_at + t * 4;
    for_pairs<Side::k, KTiles>(codes.k, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
      uint32_t scale[2], centre[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i] = load_shared(scales + (2 * p + i) * 16);
        centre[i] = multiply_add2(scale[i], codes.k_half, load_shared(scales + (2 * p + i) * 16 + 2 * D));
      }
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        const uint32_t q_low = query(2 * p, set), q_high = query(2 * p + 1, set);
        Mma<__half>::dense(constant[set], centre[0], centre[0], centre[1], centre[1], q_low, q_high);
        const uint32_t scaled_low = multiply_half2(q_low, scale[0]), scaled_high = multiply_half2(q_high, scale[1]);
        multiply_k<__half>(x[0][set], low, high, 0, scaled_low, scaled_high);
        multiply_k<__half>(x[1][set], low, high, 1, scaled_low, scaled_high);
      }
    });
#pragma unroll
    for (int i = 0; i < 8 * Sets; ++i) x[i / 4 / Sets][i / 4 % Sets][i % 4] += constant[i / 4 % Sets][i % 4];
  }

  // With a scale and a minimum for 32 channels of a token.
  __device__ __forceinline__ void multiply_queries_by_group(uint32_t block, Scores& x) const {
    uint32_t cells[4];
    Scores part = {};
    for_pairs<Side::k, KTiles>(codes.k, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        const uint32_t q_low = query(2 * p, set), q_high = query(2 * p + 1, set);
        multiply_k<__half>(part[0][set], low, high, 0, q_low, q_high);
        multiply_k<__half>(part[1][set], low, high, 1, q_low, q_high);
      }
      if (p % 2 == 0) return;
      const uint32_t scales = block + w.main.k.scales_at + p / 2 * 128 + g * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = load_half(scales + i * 16), minimum = load_half(scales + i * 16 + 64);
        const float centre = scale * __low2float(as_half2(codes.k_half)) + minimum;
#pragma unroll
        for (int j = 0; j < 2 * Sets; ++j) {
          const int set = j / 2, c = 2 * (i % 2) + j % 2;
          x[i / 2][set][c] += scale * part[i / 2][set][c] + centre * numbers.group[p / 2][8 * set + 2 * t + j % 2];
          part[i / 2][set][c] = 0.0f;
        }
      }
    });
  }

  // Q K^T of a block.
  __device__ __forceinline__ void gemm_qk(uint32_t block, Scores& x) const {
#pragma unroll
    for (int i = 0; i < 8 * Sets; ++i) x[i / 4 / Sets][i / 4 % Sets][i % 4] = middle[i / 4 % Sets][i % 2];
    const Scales scales = Formats::k_scales(w);
    if (scales == Scales::channel) return multiply_queries_by_channel(block, x);
    if (scales == Scales::group) return multiply_queries_by_group(block, x);
    multiply_queries(block, x);
  }
};

}  // namespace gossamer::cuda
