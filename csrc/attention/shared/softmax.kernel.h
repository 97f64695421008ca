// The softmax of one block after the other. Include from *.kernel.cpp files alone.
#pragma once

#include "gossamer/cpu/vec.h"
#include "kv/kv_format.h"

namespace gossamer {
namespace {

constexpr float kNothing = -__builtin_inff();  // the maximum of no scores

GOSSAMER_INLINE float highest(F32 x) {
#if GOSSAMER_LANES == 16
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(x));
#elif GOSSAMER_LANES == 8
  const __m256 wide = reinterpret_cast<__m256>(x);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(wide), _mm256_extractf128_ps(wide, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
  float most = x[0];
  for (int k = 1; k < kLanes; ++k) most = x[k] > most ? x[k] : most;
  return most;
#endif
}

// c tanh(x / c)
GOSSAMER_INLINE F32 capped(F32 x, float c) {
  const F32 y = x / c, square = y * y;
  const F32 small = y + y * square * (-0.333333333f + square * (0.133333333f - square * 0.0539682540f));
  const F32 large = 1.0f - 2.0f / (VecMath::exp(y + y) + 1.0f);
  return c * select(VecMath::abs(y) < 0.2f, small, large);
}

// What is subtracted from scores: their maximum, but 0 for one that is infinite, as in torch.logsumexp.
GOSSAMER_INLINE float offset_of(float maximum) { return __builtin_fabsf(maximum) < __builtin_inff() ? maximum : 0; }

// By how much sums shrink when the maximum grows; 0 where there were no scores.
GOSSAMER_INLINE float shrink_by(float before, float after) {
  if (before == after) return before == kNothing ? 0 : 1;
  return before == kNothing ? 0 : VecMath::exp(splat(offset_of(before) - offset_of(after)))[0];
}

// Softmax of one row so far.
struct RowState {
  float* maximum;
  float* total;  // [kLanes]: not yet added up
};

// Scores [32 tokens] to weights exp(score - maximum), 0 beyond tokens begin .. end-1; returns by how much
// earlier sums shrink.
GOSSAMER_INLINE float weigh(float* scores, int begin, int end, float softcap, const RowState& state) {
  constexpr int kParts = kBlockTokens / kLanes;
  F32 x[kParts], most = splat(kNothing);
  for (int i = 0; i < kParts; ++i) {
    x[i] = load(scores + i * kLanes);
    if (softcap != 0) x[i] = capped(x[i], softcap);
    if (begin > 0 || end < kBlockTokens) {
      I32 token;
      for (int k = 0; k < kLanes; ++k) token[k] = i * kLanes + k;
      x[i] = select((token >= begin) & (token < end), x[i], splat(kNothing));
    }
    most = select(x[i] > most, x[i], most);
  }
  const float here = highest(most), before = *state.maximum;
  const float after = here > before ? here : before;
  const float shrink = shrink_by(before, after);
  F32 total = load(state.total) * shrink;
  for (int i = 0; i < kParts; ++i) {
    const F32 p = VecMath::exp(x[i] - offset_of(after));
    store(scores + i * kLanes, p);
    total += p;
  }
  store(state.total, total);
  *state.maximum = after;
  return shrink;
}

}  // namespace
}  // namespace gossamer
