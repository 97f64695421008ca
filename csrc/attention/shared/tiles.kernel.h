// Q K^T and P V, a few rows at a time in registers.
// Include from *.kernel.cpp files alone.
#pragma once

#include "gossamer/cpu/vec.h"
#include "kv/kv_format.h"

namespace gossamer {
namespace {

constexpr int kTileRows = 4;  // rows of queries at once

#if GOSSAMER_LANES >= 8
// Lane i of the result is the sum of the lanes of v[i].
GOSSAMER_INLINE __m256 add_lanes(const __m256 (&v)[8]) {
  const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
  return _mm256_permute2f128_ps(low, high, 0x20) + _mm256_permute2f128_ps(low, high, 0x31);
}
#endif

// sums[i] is the sum of the lanes of the i-th vector of `terms`; `count` is a multiple of 8.
GOSSAMER_INLINE void add_lanes_of(const float* terms, int count, float* sums) {
#if GOSSAMER_LANES >= 8
  for (int i = 0; i < count; i += 8) {
    __m256 v[8];
    for (int k = 0; k < 8; ++k) {
      const float* p = terms + (i + k) * kLanes;
      v[k] = _mm256_loadu_ps(p);
      if (kLanes == 16) v[k] += _mm256_loadu_ps(p + 8);  // half as wide: shuffles are the bottleneck
    }
    _mm256_storeu_ps(sums + i, add_lanes(v));
  }
#else
  for (int i = 0; i < count; ++i) sums[i] = sum(load(terms + i * kLanes));
#endif
}

// A few rows of floats, `stride` apart.
struct FloatRows {
  float* data;
  int stride;
  __attribute__((always_inline)) float* operator[](int row) const { return data + row * stride; }
};

// Rows to read slice by slice, in order. A cursor stands in one of them.
struct WholeRows {
  const float* rows;
  int stride;

  struct Cursor {
    const float* row;
  };
  __attribute__((always_inline)) Cursor at(int token) const { return {rows + token * stride}; }
  GOSSAMER_INLINE F32 take(Cursor& cursor, int s) { return load(cursor.row + s * kLanes); }
};

// Calls `function` with the number of rows, as a type, and the first one of each tile.
template <int Rows>
struct Tile {
  static constexpr int kRows = Rows;
};
template <class F>
GOSSAMER_INLINE void for_tiles(int rows, const F& function) {
  int r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) function(Tile<kTileRows>{}, r);
  if (rows - r == 1) function(Tile<1>{}, r);
  if (rows - r == 2) function(Tile<2>{}, r);
  if (rows - r == 3) function(Tile<3>{}, r);
}

// The block that comes next: fetched in small steps, between the arithmetic. All at once it would stand in the way.
struct Ahead {
  const uint8_t* block;
  int token_bytes;  // a 32nd of its size
  __attribute__((always_inline)) void fetch(int token, int tokens) const {
    for (int i = token * token_bytes; i < (token + tokens) * token_bytes; i += 64) {
      __builtin_prefetch(block + i, 0, 2);  // into L2: L1 is full
    }
  }
};

// Rows queries times Tokens keys, before lanes are added: partial[row][32 tokens][lanes].
template <int Rows, int Tokens, class Source>
GOSSAMER_INLINE void multiply(const Source& keys, int token, int slices, const FloatRows& q, float* partial) {
  typename Source::Cursor cursor[Tokens];
  for (int t = 0; t < Tokens; ++t) cursor[t] = keys.at(token + t);
  F32 total[Rows][Tokens] = {};
  for (int s = 0; s < slices; ++s) {
    F32 x[Tokens];
    for (int t = 0; t < Tokens; ++t) x[t] = keys.take(cursor[t], s);
    for (int r = 0; r < Rows; ++r) {
      const F32 y = load(q[r] + s * kLanes);
      for (int t = 0; t < Tokens; ++t) total[r][t] += x[t] * y;
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int t = 0; t < Tokens; ++t) store(partial + (r * kBlockTokens + token + t) * kLanes, total[r][t]);
  }
}

// scores[row][32 tokens] of Rows queries with all tokens of a block.
template <int Rows, class Source>
GOSSAMER_INLINE void score_tile(const Source& keys, int slices, const FloatRows& q, float* partial, float* scores,
                                const Ahead& ahead) {
  constexpr int kTokens = Rows <= 2 || kLanes == 16 ? 4 : 2;  // at once
  for (int t = 0; t < kBlockTokens; t += kTokens) {
    ahead.fetch(t, kTokens);
    multiply<Rows, kTokens>(keys, t, slices, q, partial);
  }
  add_lanes_of(partial, Rows * kBlockTokens, scores);
}

template <class Source>
GOSSAMER_INLINE void score_rows(const Source& keys, int slices, int rows, const FloatRows& q, float* partial,
                                float* scores, Ahead ahead) {
  for_tiles(rows, [&](auto count, int r) {
    score_tile<decltype(count)::kRows>(keys, slices, {q[r], q.stride}, partial, scores + r * kBlockTokens, ahead);
    ahead.token_bytes = 0;  // once is enough
  });
}

// Weights of a block and what the sums so far are to be multiplied with.
struct Weights {
  const float* p;  // [rows][32 tokens]
  const float* shrink;
  int begin, end;  // tokens: the others may be anything, also NaN
  Ahead ahead;
};

// sums[row] = sums[row] * shrink + weights * values, in Slices slices from s on.
template <int Rows, int Slices, class Source>
GOSSAMER_INLINE void add_slices(const Source& values, typename Source::Cursor* cursor, int s, const Weights& w,
                                const FloatRows& sums) {
  F32 total[Rows][Slices];
  for (int r = 0; r < Rows; ++r) {
    for (int i = 0; i < Slices; ++i) total[r][i] = load(sums[r] + (s + i) * kLanes) * w.shrink[r];
  }
  for (int t = w.begin; t < w.end; ++t) {
    if (s == 0 && t % 4 == 0) w.ahead.fetch(t, 4);
    typename Source::Cursor at = cursor[t];
    F32 y[Rows];
    for (int r = 0; r < Rows; ++r) y[r] = splat(w.p[r * kBlockTokens + t]);
    for (int i = 0; i < Slices; ++i) {
      const F32 x = values.take(at, s + i);
      for (int r = 0; r < Rows; ++r) total[r][i] += x * y[r];
    }
    cursor[t] = at;
  }
  for (int r = 0; r < Rows; ++r) {
    for (int i = 0; i < Slices; ++i) store(sums[r] + (s + i) * kLanes, total[r][i]);
  }
}

// Slices as many at a time as registers hold, then fewer.
template <int Rows, int Slices, class Source>
GOSSAMER_INLINE void add_tile(const Source& values, typename Source::Cursor* cursor, int s, int slices,
                              const Weights& w, const FloatRows& sums) {
  for (; s + Slices <= slices; s += Slices) add_slices<Rows, Slices>(values, cursor, s, w, sums);
  if constexpr (Slices > 1) add_tile<Rows, Slices / 2>(values, cursor, s, slices, w, sums);
}

template <int Rows, class Source>
GOSSAMER_INLINE void value_tile(const Source& values, int slices, const Weights& w, const FloatRows& sums) {
  constexpr int kRegisters = kLanes == 16 ? 16 : 8;  // half of those there are
  constexpr int kSlices = Rows == 1 ? 8 : Rows == 2 ? kRegisters / 2 : kRegisters / 4;
  typename Source::Cursor cursor[kBlockTokens];
  for (int t = w.begin; t < w.end; ++t) cursor[t] = values.at(t);
  add_tile<Rows, kSlices>(values, cursor, 0, slices, w, sums);
}

template <class Source>
GOSSAMER_INLINE void value_rows(const Source& values, int slices, int rows, const Weights& w, const FloatRows& sums) {
  for_tiles(rows, [&](auto count, int r) {
    const Ahead ahead{w.ahead.block, r == 0 ? w.ahead.token_bytes : 0};
    const Weights tile{w.p + r * kBlockTokens, w.shrink + r, w.begin, w.end, ahead};
    value_tile<decltype(count)::kRows>(values, slices, tile, {sums[r], sums.stride});
  });
}

}  // namespace
}  // namespace gossamer
