// Rows of any width on one thread: whole vectors, and the part of one at the end.
#pragma once

#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

// A whole vector, or the first n < kLanes elements of one.
struct Whole {};
struct Part {
  int64_t n;
};
template <class T>
GOSSAMER_INLINE F32 load(const T* p, Whole) {
  return load(p);
}
template <class T>
GOSSAMER_INLINE F32 load(const T* p, Part part) {
  return load_partial(p, part.n);
}
template <class T>
GOSSAMER_INLINE void store(T* p, F32 x, Whole) {
  store(p, x);
}
template <class T>
GOSSAMER_INLINE void store(T* p, F32 x, Part part) {
  store_partial(p, x, part.n);
}

// The sum over a row of what `term(i, size)` makes of the elements from i on.
template <class Term>
GOSSAMER_INLINE double sum_row(int64_t width, const Term& term) {
  // Partial sums of at most 4096 elements keep float32 accurate at any width.
  constexpr int64_t chunk = 4096;
  double total = 0;
  for (int64_t start = 0; start < width; start += chunk) {
    const int64_t end = start + chunk < width ? start + chunk : width;
    F32 sums[2] = {};
    int64_t i = start;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      for (int u = 0; u < 2; ++u) sums[u] += term(i + u * kLanes, Whole{});
    }
    for (; i + kLanes <= end; i += kLanes) sums[0] += term(i, Whole{});
    if (i < end) {
      float some[kLanes];
      store(some, term(i, Part{end - i}));
      sums[1] += load_partial(some, end - i);  // without what the other lanes hold
    }
    total += sum(sums[0] + sums[1]);
  }
  return total;
}

// Calls `step(i, size)` along a row; the last elements twice where that saves a partial vector.
template <class Step>
GOSSAMER_INLINE void along_row(int64_t width, const Step& step) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) step(i, Whole{});
  if (i == width) return;
  if (width >= kLanes) return step(width - kLanes, Whole{});
  step(0, Part{width});
}

}  // namespace
}  // namespace gossamer
