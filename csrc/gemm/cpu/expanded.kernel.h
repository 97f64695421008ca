// A few rows of x times weights in few bits, which are expanded to floats in registers, 32 of a row at a time, once for
// up to four rows of x. Include from *.kernel.cpp files alone.
#pragma once

#include "block.kernel.h"
#include "fold.kernel.h"
#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

constexpr int kRun = 32;                 // weights that are expanded at a time
constexpr int kVectors = kRun / kLanes;  // of them

// Where results go: contiguous [rows, n]; bias: [n], or null.
struct Result {
  DType dtype;
  int64_t rows, n;
  const void* bias;
  void* out;
};

// R rows of x and C of weights at a time. Registers hold a sum for each pair, a run of one row of weights, and what
// expanding takes.
template <int R_>
struct Tile {
  static constexpr int kRegisters = kLanes == 16 ? 32 : 16, kFree = (kRegisters - kVectors - 2) / R_;
  static constexpr int R = R_, C = kFree < 8 ? kFree : 8;
  F32 sums[R * C];

  // x: of a run, R rows of 32 floats.
  GOSSAMER_INLINE void add(Tile& t, int c, const float* x, const F32 (&w)[kVectors]) {
    GOSSAMER_UNROLL
    for (int r = 0; r < R; ++r) {
      GOSSAMER_UNROLL
      for (int v = 0; v < kVectors; ++v) t.sums[r * C + c] += load(x + r * kRun + v * kLanes) * w[v];
    }
  }

  // `columns` of C results of each row, from the sum First on: a vector of sums at a time. row, j: of the first result.
  template <class T, int First>
  GOSSAMER_INLINE void store_from(const Tile& t, const Result& result, int64_t row, int64_t j, int columns) {
    constexpr int count = R * C - First < kLanes ? R * C - First : kLanes;
    T shifts[kLanes] = {}, results[kLanes];
    GOSSAMER_UNROLL
    for (int i = 0; i < count; ++i) {
      const int c = (First + i) % C;
      if (result.bias) shifts[folded_lane(i)] = static_cast<const T*>(result.bias)[j + (c < columns ? c : 0)];
    }
    store(results, fold<1, First>(t.sums) + load(shifts));
    T* out = static_cast<T*>(result.out) + row * result.n + j;
    GOSSAMER_UNROLL
    for (int i = 0; i < count; ++i) {
      const int r = (First + i) / C, c = (First + i) % C;
      if (c < columns) out[r * result.n + c] = results[folded_lane(i)];
    }
    if constexpr (First + kLanes < R * C) store_from<T, First + kLanes>(t, result, row, j, columns);
  }

  GOSSAMER_INLINE void store_all(const Tile& t, const Result& result, int64_t row, int64_t j, int columns) {
    if (result.dtype == DType::f32) return store_from<float, 0>(t, result, row, j, columns);
    if (result.dtype == DType::f16) return store_from<f16_t, 0>(t, result, row, j, columns);
    store_from<bf16_t, 0>(t, result, row, j, columns);
  }
};

// f(RowCount<void, R>) for the R that takes the fewest blocks of rows, of equal size.
template <class, int R>
struct RowCount {
  static constexpr int count = R;
};
template <class F>
GOSSAMER_INLINE void with_row_count(int64_t rows, F f) {
  with_rows<RowCount, void>(rows, f);
}

// x [rows, k] in blocks of R rows; of each block, R rows of the first 32 floats, then of the next ones.
template <int R, class T>
GOSSAMER_INLINE void pack_floats(const T* x, int64_t stride, int64_t rows, int64_t k, float* to) {
  for (int64_t b = 0; b < count_blocks(rows, R); ++b) {
    const T* block = x + first_row<Tile<R>>(rows, b) * stride;
    for (int64_t i = 0; i < k; i += kLanes) {
      for (int r = 0; r < R; ++r) store(to + (i / kRun * R + r) * kRun + i % kRun, load(block + r * stride + i));
    }
    to += R * k;
  }
}

// The same for x of any type.
GOSSAMER_INLINE void pack_any(DType dtype, const void* x, int64_t stride, int64_t rows, int64_t k, float* to) {
  with_row_count(rows, [&](auto count) {
    constexpr int R = decltype(count)::count;
    if (dtype == DType::f32) return pack_floats<R>(static_cast<const float*>(x), stride, rows, k, to);
    if (dtype == DType::f16) return pack_floats<R>(static_cast<const f16_t*>(x), stride, rows, k, to);
    pack_floats<R>(static_cast<const bf16_t*>(x), stride, rows, k, to);
  });
}

// Asks for what run i takes of the C rows, `stride` bytes each, that lie next to each other a few KB after the row at
// p: less is too late for memory, which takes 100 ns.
template <int C>
GOSSAMER_INLINE void prefetch_rows(const uint8_t* p, int64_t stride, int64_t i, int64_t runs) {
  const int64_t group = C * stride, distance = group * (1 + 4096 / group);
  for (int64_t at = i * group / runs / 64 * 64; at < (i + 1) * group / runs; at += 64) {
    __builtin_prefetch(p + distance + at, 0, 2);  // past the end that does no harm
  }
}

// Rows begin .. end-1 of the weights, whose results begin at `column`. Weights: `row(j)` is where row j begins, and
// `expand(row, i, w)` makes floats of its run i; `prefetch(row, i)` asks for bytes of rows that come later.
template <int R, class Weights>
GOSSAMER_INLINE void multiply(const Weights& weights, const Result& result, const float* packed, int64_t runs,
                              int64_t column, int64_t begin, int64_t end) {
  using T = Tile<R>;
  for (int64_t j = begin; j < end; j += T::C) {
    const int columns = static_cast<int>(end - j < T::C ? end - j : T::C);
    for (int64_t b = 0; b < count_blocks(result.rows, R); ++b) {
      const float* x = packed + b * R * runs * kRun;
      T t;
      decltype(weights.row(0)) rows[T::C];
      GOSSAMER_UNROLL
      for (int s = 0; s < R * T::C; ++s) t.sums[s] = F32{};
      GOSSAMER_UNROLL
      for (int c = 0; c < T::C; ++c) rows[c] = weights.row(j + (c < columns ? c : 0));
      for (int64_t i = 0; i < runs; ++i, x += R * kRun) {
        if (b == 0) weights.template prefetch<T::C>(rows[0], i, runs);
        GOSSAMER_UNROLL
        for (int c = 0; c < T::C; ++c) {
          F32 w[kVectors];
          weights.expand(rows[c], i, w);
          T::add(t, c, x, w);
        }
      }
      T::store_all(t, result, first_row<T>(result.rows, b), column + j, columns);
    }
  }
}

// Rows begin .. end-1 of the weights as numbers of another type; out: contiguous, of these rows.
template <class T, class Weights>
GOSSAMER_INLINE void expand_rows(const Weights& weights, int64_t runs, T* out, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    const auto row = weights.row(j);
    for (int64_t i = 0; i < runs; ++i) {
      F32 w[kVectors];
      weights.expand(row, i, w);
      for (int v = 0; v < kVectors; ++v) store(out + ((j - begin) * runs + i) * kRun + v * kLanes, w[v]);
    }
  }
}

template <class Weights>
GOSSAMER_INLINE void expand_any(const Weights& weights, int64_t runs, DType dtype, void* out, int64_t begin,
                                int64_t end) {
  if (dtype == DType::f32) return expand_rows(weights, runs, static_cast<float*>(out), begin, end);
  if (dtype == DType::f16) return expand_rows(weights, runs, static_cast<f16_t*>(out), begin, end);
  expand_rows(weights, runs, static_cast<bf16_t*>(out), begin, end);
}

}  // namespace
}  // namespace gossamer
