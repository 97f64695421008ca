// P V of a warp and a block of dense codes, for each kind of scales.
#pragma once

#include "attention/decode/codes_formats.cuh"
#include "attention/decode/codes_state.cuh"

namespace gossamer::cuda {

template <class Traits>
struct CodesValues {
  static constexpr int D = Traits::D, Sets = Traits::Sets, Pairs = D / 16;
  using Weights = uint32_t[2][Sets][2];  // an operand: tokens 2 t, 2 t + 1, then + 8, of row g
  using Formats = typename Traits::Formats;
  using VTiles = typename Formats::VTiles;

  const DecodeParams& w;
  const CodesParams<D>& codes;
  int lane, g, t;
  CodesState<D, Sets> state;

  __device__ __forceinline__ void clear() {
    state.clear();
    const Scales scales = Formats::v_scales(w);
    if (scales == Scales::row || scales == Scales::group) state.forget_unit();
  }

  // Values in a profile are half a step above their codes: adds half the weights.
  __device__ __forceinline__ void add_middle(const Weights& weights) {
    const uint32_t half = 0x38003800u;  // 0.5 twice
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        Mma<__half>::dense(state.centre[set], half, half, half, half, weights[m][set][0], weights[m][set][1]);
      }
    }
  }

  __device__ __forceinline__ void multiply_values(uint32_t block, const Weights& weights) {
    uint32_t cells[4];
    for_pairs<Side::v, VTiles>(codes.v, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        multiply_v<__half>(state.out[p][set], low, high, 0, weights[0][set]);
        multiply_v<__half>(state.out[p][set], low, high, 1, weights[1][set]);
      }
    });
  }

  // Centres of groups times weights: group g is row g of the product.
  __device__ __forceinline__ void add_group_centres(uint32_t block, const Weights& weights) {
    uint32_t centres[4] = {};
    if (g < D / 32) {
      const uint32_t scales = block + w.main.v.scales_at + g * 128 + t * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        centres[i] = multiply_add2(load_shared(scales + i * 16), codes.v_half, load_shared(scales + i * 16 + 64));
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        Mma<__half>::dense(state.centre[set], centres[2 * m], 0, centres[2 * m + 1], 0, weights[m][set][0],
                           weights[m][set][1]);
      }
    }
  }
  // With a scale and a minimum for 32 channels of a token: weights are scaled instead.
  __device__ __forceinline__ void multiply_values_by_group(uint32_t block, const Weights& weights) {
    add_group_centres(block, weights);
    const uint32_t unit = pack2<__half>(state.unit, state.unit);
    uint32_t cells[4];
    Weights scaled;
    for_pairs<Side::v, VTiles>(codes.v, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
      if (p % 2 == 0) {
        const uint32_t scales = block + w.main.v.scales_at + p / 2 * 128 + t * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t scale = multiply_half2(load_shared(scales + i * 16), unit);
#pragma unroll
          for (int set = 0; set < Sets; ++set) {
            scaled[i / 2][set][i % 2] = multiply_half2(weights[i / 2][set][i % 2], scale);
          }
        }
      }
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        multiply_v<__half>(state.out[p][set], low, high, 0, scaled[0][set]);
        multiply_v<__half>(state.out[p][set], low, high, 1, scaled[1][set]);
      }
    });
  }

  // With a scale and a minimum per channel: what a block adds is scaled instead.
  __device__ __forceinline__ void multiply_values_by_channel(uint32_t block, const Weights& weights) {
    const uint32_t one = 0x3c003c00u;
    float total[Sets][4] = {};
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) {
      Mma<__half>::dense(total[i % Sets], one, one, one, one, weights[i / Sets][i % Sets][0],
                         weights[i / Sets][i % Sets][1]);
    }
    uint32_t cells[4];
    const uint32_t scales = block + w.main.v.scales_at + g * 2;
    for_pairs<Side::v, VTiles>(codes.v, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
      float scale[2], centre[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i] = load_half(scales + (2 * p + i) * 16);
        centre[i] = scale[i] * __low2float(as_half2(codes.v_half)) + load_half(scales + (2 * p + i) * 16 + 2 * D);
      }
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        float part[4] = {};
        multiply_v<__half>(part, low, high, 0, weights[0][set]);
        multiply_v<__half>(part, low, high, 1, weights[1][set]);
#pragma unroll
        for (int c = 0; c < 4; ++c) state.out[p][set][c] += scale[c / 2] * part[c] + centre[c / 2] * total[set][c];
      }
    });
  }

  __device__ __forceinline__ void gemm_pv(uint32_t block, const Weights& weights) {
    const Scales scales = Formats::v_scales(w);
    if (scales == Scales::channel) return multiply_values_by_channel(block, weights);
    if (scales == Scales::group) return multiply_values_by_group(block, weights);
    if (codes.v_middle) add_middle(weights);
    multiply_values(block, weights);
  }

  // Tokens that no row sees: their scales may be anything, as may numbers in 8 bits, and zero times NaN is NaN.
  __device__ __forceinline__ void clear_token(const KvFormat& f, uint32_t block) const {
    const auto clear_half = [](uint32_t at) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(uint16_t{0})); };
    if (f.scales == Scales::row) clear_half(block + f.scales_at + lane * 2);
    for (int i = 0; f.scales == Scales::group && i < D / 16; ++i) clear_half(block + f.scales_at + i * 64 + lane * 2);
    for (int i = 0; f.values == Values::fp8 && i < f.row_bytes / 2; ++i) {
      clear_half(block + i / 8 * kCodeChunk + lane * 16 + i % 8 * 2);
    }
  }

  // The largest scale of V in a block, of this lane's part of it.
  __device__ __forceinline__ float largest_scale(uint32_t block, const float (&by_token)[4]) const {
    if (Formats::v_scales(w) == Scales::row) {
      return fmaxf(fmaxf(fabsf(by_token[0]), fabsf(by_token[1])), fmaxf(fabsf(by_token[2]), fabsf(by_token[3])));
    }
    float most = 0.0f;
    if (Formats::v_scales(w) == Scales::group) {
#pragma unroll
      for (int i = 0; i < D / 32; ++i) most = fmaxf(most, load_half(block + w.main.v.scales_at + i * 128 + lane * 2));
    }
    return most;
  }

  // Scales of V times the unit, 1 where it has none of its rows.
  __device__ __forceinline__ void scale_weights(uint32_t block, float (&by_token)[4]) {
    const Scales scales = Formats::v_scales(w);
    if (scales != Scales::row && scales != Scales::group) return;
    if (scales == Scales::row) load_row_scales(w.main.v, block, g, by_token);
    const float most = fmaxf(largest_scale(block, by_token), kLeastScale);
    if (__any_sync(~0u, most * state.unit > kMostUnits)) state.take_unit(most);
    if (scales != Scales::row) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) by_token[i] *= state.unit;
  }

  // Sums of codes to sums of values; after that the window's can be added.
  __device__ __forceinline__ void finish() {
    const float back = 1.0f / state.unit;
    const bool groups = Formats::v_scales(w) == Scales::group;
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
#pragma unroll
      for (int i = 0; i < 4 * Sets; ++i) {
        const int set = i / 4, c = i % 4;
        float& out = state.out[p][set][c];
        if (groups) {
          out = out * back + __shfl_sync(~0u, state.centre[set][c % 2], p / 2 * 4 + t);
        } else {
          const bool any = codes.v.tiles[2 * p + c / 2].mask != 0;
          out = (out + (any ? state.centre[set][c % 2] : 0.0f)) * back;
        }
      }
    }
  }
};

}  // namespace gossamer::cuda
