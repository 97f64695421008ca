// Some rows of x times some rows of the weights: the inner loop of linear and of linear_int8.
// Include from *.kernel.cpp files alone.
#pragma once

#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

constexpr int kMaxRows = 4;  // 8 with AVX-512 take 1.1 to 1.6 times as long for 8 and 16 rows

// Loops over registers are unrolled whole: an array that is indexed at run time lies in memory.
#define GOSSAMER_UNROLL _Pragma("GCC unroll 32")

// Registers hold a sum for each pair, a vector of each row of the weights, and what Dot takes besides.
template <class Dot_, int R_>
struct Block {
  using Dot = Dot_;
  using X = typename Dot::X;
  using T = typename Dot::Element;
  using Sum = typename Dot::Sum;
  static constexpr int kRegisters = kLanes == 16 ? 32 : 16, kMost = (kRegisters - Dot::registers) / (R_ + 1);
  static constexpr int R = R_, C = kMost < 8 ? kMost : 8, step = Dot::step;
  static constexpr int line = 64 / sizeof(T);

  Sum sums[R * C];
  const T* weight[C];

  GOSSAMER_INLINE void add(Block& b, const X* x, const Sum (&w)[C]) {
    GOSSAMER_UNROLL
    for (int r = 0; r < R; ++r) {
      const Sum row = Dot::x(x + r * step);
      GOSSAMER_UNROLL
      for (int c = 0; c < C; ++c) b.sums[r * C + c] = Dot::add(b.sums[r * C + c], row, w[c]);
    }
  }

  GOSSAMER_INLINE void add_vector(Block& b, const X* x, int64_t i) {
    Sum w[C];
    GOSSAMER_UNROLL
    for (int c = 0; c < C; ++c) w[c] = Dot::weight(b.weight[c] + i);
    add(b, x + i * R, w);
  }

  GOSSAMER_INLINE void add_partial(Block& b, const X* x, int64_t i, int64_t n) {
    Sum w[C];
    T some[step] = {};
    GOSSAMER_UNROLL
    for (int c = 0; c < C; ++c) {
      std::memcpy(some, b.weight[c] + i, n * sizeof(T));
      w[c] = Dot::weight(some);
    }
    add(b, x + i * R, w);
  }

  // x: vectors of its first `step` channels, one for each row, then of the next ones. ahead: elements to what is read
  // next, asked for a cache line at a time. (Past the end that does no harm.)
  GOSSAMER_INLINE void add_all(Block& b, const X* x, int64_t k, int64_t ahead) {
    int64_t i = 0;
    for (; i + line <= k; i += line) {
      GOSSAMER_UNROLL
      for (int c = 0; c < C; ++c) __builtin_prefetch(b.weight[c] + i + ahead, 0, 2);  // to L2
      GOSSAMER_UNROLL
      for (int u = 0; u < line; u += step) add_vector(b, x, i + u);
    }
    for (; i < k; i += step) add_partial(b, x, i, k - i < step ? k - i : step);
  }
};

// ---- rows in blocks of R: the last block is of the last R rows, some of which are then computed twice ----------
GOSSAMER_INLINE int64_t count_blocks(int64_t rows, int64_t most) { return (rows + most - 1) / most; }

template <class B>
GOSSAMER_INLINE int64_t first_row(int64_t rows, int64_t block) {
  return (block + 1) * B::R <= rows ? block * B::R : rows - B::R;
}

// f(Of<Dot, R>) for the R that takes the fewest blocks, of equal size.
template <template <class, int> class Of, class Dot, int R = kMaxRows, class F>
GOSSAMER_INLINE void with_rows(int64_t rows, F f) {
  if constexpr (R > 1) {
    if (count_blocks(rows, count_blocks(rows, kMaxRows)) < R) return with_rows<Of, Dot, R - 1>(rows, f);
  }
  f(Of<Dot, R>{});
}

}  // namespace
}  // namespace gossamer
