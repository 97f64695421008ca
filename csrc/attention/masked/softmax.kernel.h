// The softmax of a strip of queries, some panels of keys after the other. Include from *.kernel.cpp files alone.
#pragma once

#include "attention/masked/gemm.kernel.h"
#include "attention/shared/softmax.kernel.h"

namespace gossamer {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// The larger of two, or b where one is NaN.
GOSSAMER_INLINE F32 larger(F32 a, F32 b) {
#if GOSSAMER_LANES == 16
  return reinterpret_cast<F32>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif GOSSAMER_LANES == 8
  return reinterpret_cast<F32>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return select(a > b, a, b);
#endif
}

// 2^x for x <= 0, off by 1e-7 of it; 0 below 2^-126; NaN stays NaN.
GOSSAMER_INLINE F32 exp2_negative(F32 x) {
  constexpr float magic = 0x1.8p23f;  // adding it rounds to an integer
  const F32 t = larger(splat(-127.0f), x);
  const F32 shifted = t + magic;
  const F32 r = t - (shifted - magic);
  F32 p = r * 1.326472731e-3f + 9.671512991e-3f;
  p = p * r + 5.550733581e-2f;
  p = p * r + 2.402224243e-1f;
  p = p * r + 6.931470037e-1f;
  // Of -127 the exponent's bits are all 0, which makes the power 0.
  return (p * r + 1.0f) * from_bits((bits(shifted) - (0x4b400000u - 127u)) << 23);
}

// x where bits First .. First + kLanes - 1 of `word` are on, else -inf.
GOSSAMER_INLINE F32 where_seen(F32 x, uint32_t word, int first) {
#if GOSSAMER_LANES == 16
  const __mmask16 seen = static_cast<__mmask16>(word >> first);
  return reinterpret_cast<F32>(_mm512_mask_mov_ps(_mm512_set1_ps(kNothing), seen, reinterpret_cast<__m512>(x)));
#else
  I32 lane;
  for (int k = 0; k < kLanes; ++k) lane[k] = 1 << k;
  const I32 seen = (I32{} + static_cast<int32_t>(word >> first)) & lane;
  return select(seen != 0, x, splat(kNothing));
#endif
}

// Which keys of the panels at hand the queries of a strip see.
struct StripMask {
  uint32_t words[kStripRows][kMaskedGroupPanels];
  bool partial[kMaskedGroupPanels];  // else all of them
};

// Softmax of the strip's rows so far, in powers of two.
struct StripState {
  float* maxima;
  float* totals;  // [row][kLanes]: not yet added up
};

// Scores that are not seen become -inf; returns the largest.
GOSSAMER_INLINE float mask_row(float* scores, const StripMask& mask, int row, int panels) {
  F32 most = splat(kNothing);
  for (int i = 0; i < panels; ++i) {
    GOSSAMER_UNROLL
    for (int k = 0; k < kPanelKeys; k += kLanes) {
      F32 x = load(scores + i * kPanelKeys + k);
      if (mask.partial[i]) {
        x = where_seen(x, mask.words[row][i], k);
        store(scores + i * kPanelKeys + k, x);
      }
      most = larger(x, most);
    }
  }
  return highest(most);
}

// Scores [row][panels * 32] to weights 2^(score - maximum); `shrink` is by how much earlier sums shrink.
GOSSAMER_INLINE void weigh_strip(float* scores, const StripMask& mask, int panels, const StripState& state,
                                 float (&shrink)[kMaskedStripRows]) {
  float offset[kMaskedStripRows];
  for (int r = 0; r < kStripRows; ++r) {
    const float before = state.maxima[r], here = mask_row(scores + r * kMaskedScoreFloats, mask, r, panels);
    const float after = here > before ? here : before;
    offset[r] = offset_of(after);
    shrink[r] = before - offset[r];  // -inf where there were no scores
    state.maxima[r] = after;
  }
  for (int r = 0; r < kStripRows; r += kLanes) {
    const int n = kStripRows - r < kLanes ? kStripRows - r : kLanes;
    store_partial(shrink + r, exp2_negative(load_partial(shrink + r, n)), n);
  }
  for (int r = 0; r < kStripRows; ++r) {
    float* row = scores + r * kMaskedScoreFloats;
    F32 total = load(state.totals + r * kLanes) * shrink[r];
    for (int k = 0; k < panels * kPanelKeys; k += 2 * kLanes) {
      const F32 a = exp2_negative(load(row + k) - offset[r]), b = exp2_negative(load(row + k + kLanes) - offset[r]);
      store(row + k, a);
      store(row + k + kLanes, b);
      total += a + b;
    }
    store(state.totals + r * kLanes, total);
  }
}

// n <= 32 elements of a row of the bias, as float32.
template <class T>
GOSSAMER_INLINE void load_bias(const void* data, int64_t at, int64_t stride, int n, float* to) {
  const T* from = static_cast<const T*>(data) + at;
  T row[kPanelKeys] = {};
  for (int i = 0; i < n; ++i) row[i] = from[i * stride];
  for (int k = 0; k < kPanelKeys; k += kLanes) store(to + k, load(row + k));
}

// Scores of a row with 32 keys, of which `keys` exist: capped, biased and in powers of two.
GOSSAMER_INLINE void adjust(const MaskedParams& w, int64_t bias_at, int keys, float* scores) {
  alignas(64) float bias[kPanelKeys] = {};
  const MaskedBias& b = w.bias;
  if (b.data && b.dtype == DType::f32) load_bias<float>(b.data, bias_at, b.key_stride, keys, bias);
  if (b.data && b.dtype == DType::f16) load_bias<f16_t>(b.data, bias_at, b.key_stride, keys, bias);
  if (b.data && b.dtype == DType::bf16) load_bias<bf16_t>(b.data, bias_at, b.key_stride, keys, bias);
  for (int k = 0; k < kPanelKeys; k += kLanes) {
    F32 x = load(scores + k);
    if (w.softcap != 0) x = capped(x, w.softcap);
    store(scores + k, (x + load(bias + k)) * kLog2E);
  }
}

}  // namespace
}  // namespace gossamer
