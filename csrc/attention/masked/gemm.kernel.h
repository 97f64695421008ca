// Q K^T and P V of a strip of queries and panels of keys and values, in registers. Include from *.kernel.cpp files
// alone.
#pragma once

#include "attention/masked/pack.kernel.h"

namespace gossamer {
namespace {

// Rows of a strip: as many as leave registers for two vectors of the other side.
constexpr int kStripRows = kLanes == 16 ? 8 : 4;
static_assert(kStripRows <= kMaskedStripRows);

// Loops over registers are unrolled whole: an array that is indexed at run time lies in memory.
#define GOSSAMER_UNROLL _Pragma("GCC unroll 32")

// total[row][vector] += a[row][i] * b[i][vector] for i < depth; b is contiguous.
template <int Vectors, int Stride>
GOSSAMER_INLINE void multiply_add(const float* a, const float* b, int depth, F32 (&total)[kStripRows][Vectors]) {
  for (int i = 0; i < depth; ++i, ++a, b += Vectors * kLanes) {
    F32 x[Vectors];
    GOSSAMER_UNROLL
    for (int j = 0; j < Vectors; ++j) x[j] = load(b + j * kLanes);
    GOSSAMER_UNROLL
    for (int r = 0; r < kStripRows; ++r) {
      GOSSAMER_UNROLL
      for (int j = 0; j < Vectors; ++j) total[r][j] += x[j] * a[r * Stride];
    }
  }
}

// scores[row][32] of a strip of queries with a panel of keys.
GOSSAMER_INLINE void score_panel(const float* q, const float* keys, int head_dim, float* scores) {
  for (int key = 0; key < kPanelKeys; key += kBlockWidth) {
    F32 total[kStripRows][2] = {};
    multiply_add<2, kMaskedRowFloats>(q, keys + key * head_dim, head_dim, total);
    GOSSAMER_UNROLL
    for (int r = 0; r < kStripRows; ++r) {
      store(scores + r * kMaskedScoreFloats + key, total[r][0]);
      store(scores + r * kMaskedScoreFloats + key + kLanes, total[r][1]);
    }
  }
}

// The panels of values that weights [row][panels * 32] are for.
struct ValuePanels {
  const float* panel[kMaskedGroupPanels];
  int count;
};

// sums[row] = sums[row] * shrink[row] + weights * values, in channels c .. c + Vectors * kLanes.
template <int Vectors>
GOSSAMER_INLINE void add_channels(const float* weights, const ValuePanels& values, const float* shrink, int c,
                                  float* sums) {
  F32 total[kStripRows][Vectors];
  GOSSAMER_UNROLL
  for (int r = 0; r < kStripRows; ++r) {
    GOSSAMER_UNROLL
    for (int j = 0; j < Vectors; ++j) {
      total[r][j] = load(sums + r * kMaskedRowFloats + c + j * kLanes) * shrink[r];
    }
  }
  for (int i = 0; i < values.count; ++i) {
    multiply_add<Vectors, kMaskedScoreFloats>(weights + i * kPanelKeys, values.panel[i] + c * kPanelKeys, kPanelKeys,
                                              total);
  }
  GOSSAMER_UNROLL
  for (int r = 0; r < kStripRows; ++r) {
    GOSSAMER_UNROLL
    for (int j = 0; j < Vectors; ++j) store(sums + r * kMaskedRowFloats + c + j * kLanes, total[r][j]);
  }
}

GOSSAMER_INLINE void add_values(const float* weights, const ValuePanels& values, const float* shrink, int head_dim,
                                float* sums) {
  int c = 0;
  for (; head_dim - c > kLanes; c += kBlockWidth) add_channels<2>(weights, values, shrink, c, sums);
  if (c < head_dim) add_channels<1>(weights, values, shrink, c, sums);
}

}  // namespace
}  // namespace gossamer
