// The sums over lanes of as many vectors as a vector has lanes: a fourth of the instructions that one by one would
// take. Lanes are added in the same order in every vector: i and i + kLanes/2, then of those i and i + kLanes/4, ...
#pragma once

#include <utility>

#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

// Where lane i of a folded pair comes from: [a's first H lanes, b's first H lanes] of each group of 2H lanes.
template <int H>
constexpr int lower_lane(int i) {
  return i / (2 * H) * (2 * H) + (i / H % 2) * kLanes + i % H;
}

template <int H, class V, int... I>
GOSSAMER_INLINE V fold_pair(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, lower_lane<H>(I)...) + __builtin_shufflevector(a, b, (lower_lane<H>(I) + H)...);
}

// Vectors First .. First + kLanes/H - 1, folded until sums of H lanes are left. Those from N on do not exist.
template <int H, int First, class V, int N>
GOSSAMER_INLINE V fold(const V (&v)[N]) {
  if constexpr (H == kLanes) {
    return v[First];
  } else {
    constexpr int second = First + kLanes / (2 * H);
    const V a = fold<2 * H, First>(v);
    const V b = fold<2 * H, (second < N ? second : First)>(v);
    return fold_pair<H>(a, b, std::make_integer_sequence<int, kLanes>());
  }
}

// The lane of fold<1, First> that has the sum of vector First + i: the bits of i in reverse order.
constexpr int folded_lane(int i) {
  int lane = 0;
  for (int bit = 1; bit < kLanes; bit *= 2) lane = 2 * lane + (i / bit) % 2;
  return lane;
}

}  // namespace
}  // namespace gossamer
