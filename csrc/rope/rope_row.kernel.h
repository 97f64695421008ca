// How a row of queries or keys is turned, after an RMSNorm if there is one. Include from *.kernel.cpp files alone.
#pragma once

#include "gossamer/cpu/vec.h"
#include "rope/rope.kernel.h"

namespace gossamer {
namespace {

// ---- a row as it is turned: x itself, or its RMSNorm --------------------------------
template <class T>
struct Plain {
  const T* x;

  F32 at(int64_t i) const { return load(x + i); }
  F32 at(int64_t i, int64_t n) const { return load_partial(x + i, n); }
};

template <class T>
struct Normed {
  const T *x, *weight;
  float scale;

  F32 at(int64_t i) const { return load(x + i) * scale * load(weight + i); }
  F32 at(int64_t i, int64_t n) const { return load_partial(x + i, n) * scale * load_partial(weight + i, n); }
};

// 1 / sqrt(mean of squares + eps); at most 1024 channels, few enough for float32 sums.
template <class T>
GOSSAMER_INLINE float rms_scale(const T* x, int64_t n, float eps) {
  F32 squares = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) squares += load(x + i) * load(x + i);
  if (i < n) squares += load_partial(x + i, n - i) * load_partial(x + i, n - i);
  return 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(n) + eps);
}

// Where a row ends within a vector, the last whole one is taken once more, which is cheaper than a partial one; not
// in place, where it would be turned twice.

// ---- pairs (i, i + pairs): two vectors of one channel each --------------------------
template <class T, class Row>
GOSSAMER_INLINE void turn_halves(const Row& row, const float* cos, const float* sin, T* out, int64_t pairs,
                                 bool in_place) {
  const auto whole_vector = [&](int64_t i) {
    const F32 a = row.at(i), b = row.at(pairs + i), c = load(cos + i), s = load(sin + i);
    store(out + i, a * c - b * s);
    store(out + pairs + i, b * c + a * s);
  };
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) whole_vector(i);
  if (i == pairs) return;
  if (i > 0 && !in_place) return whole_vector(pairs - kLanes);
  const int64_t n = pairs - i;
  const F32 a = row.at(i, n), b = row.at(pairs + i, n);
  const F32 c = load_partial(cos + i, n), s = load_partial(sin + i, n);
  store_partial(out + i, a * c - b * s, n);
  store_partial(out + pairs + i, b * c + a * s, n);
}

// ---- pairs (2i, 2i + 1): neighbours in one vector -------------------------------------
// A pair is a 64-bit lane, so that shifts move its halves: no shuffle, which differs by instruction set.
using U64 = uint64_t __attribute__((vector_size(4 * GOSSAMER_LANES)));
using HalfU32 = uint32_t __attribute__((vector_size(2 * GOSSAMER_LANES)));

GOSSAMER_INLINE U64 each_twice(const float* p) {
  const U64 wide = __builtin_convertvector(load_raw<HalfU32>(p), U64);
  return wide | wide << 32;
}

GOSSAMER_INLINE F32 turn_neighbours(F32 x, const float* cos, const float* sin) {
  const U64 bits = reinterpret_cast<U64>(x);
  const F32 swapped = reinterpret_cast<F32>(bits << 32 | bits >> 32);
  // (a, b) * cos + (b, a) * (-sin, sin): the first of a pair is the lower half.
  const F32 signed_sin = reinterpret_cast<F32>(each_twice(sin) ^ 0x80000000u);
  return x * reinterpret_cast<F32>(each_twice(cos)) + swapped * signed_sin;
}

template <class T, class Row>
GOSSAMER_INLINE void turn_neighbours(const Row& row, const float* cos, const float* sin, T* out, int64_t pairs,
                                     bool in_place) {
  const auto whole_vector = [&](int64_t i) { store(out + i, turn_neighbours(row.at(i), cos + i / 2, sin + i / 2)); };
  const int64_t end = 2 * pairs;
  int64_t i = 0;
  for (; i + kLanes <= end; i += kLanes) whole_vector(i);
  if (i == end) return;
  if (i > 0 && !in_place) return whole_vector(end - kLanes);
  const int64_t n = end - i;
  float some_cos[kLanes / 2] = {}, some_sin[kLanes / 2] = {};
  std::memcpy(some_cos, cos + i / 2, n / 2 * sizeof(float));
  std::memcpy(some_sin, sin + i / 2, n / 2 * sizeof(float));
  store_partial(out + i, turn_neighbours(row.at(i, n), some_cos, some_sin), n);
}

// ---- channels that are not turned ------------------------------------------------------
template <class T>
GOSSAMER_INLINE void keep(const Plain<T>& row, T* out, int64_t first, int64_t n, bool in_place) {
  if (!in_place) std::memcpy(out + first, row.x + first, n * sizeof(T));
}

template <class T>
GOSSAMER_INLINE void keep(const Normed<T>& row, T* out, int64_t first, int64_t n, bool) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + first + i, row.at(first + i));
  if (i < n) store_partial(out + first + i, row.at(first + i, n - i), n - i);
}

template <class T, class Row>
GOSSAMER_INLINE void turn_as(const RopeRows& work, const Row& row, int64_t position, T* out) {
  const float* cos = work.cos + position * work.pairs;
  const float* sin = work.sin + position * work.pairs;
  const int64_t turned = 2 * work.pairs, rest = work.head_dim - turned;
  if (work.interleaved) {
    turn_neighbours(row, cos, sin, out, work.pairs, work.in_place);
  } else {
    turn_halves(row, cos, sin, out, work.pairs, work.in_place);
  }
  if (rest > 0) keep(row, out, turned, rest, work.in_place);
}

// Row `head` of a token at this position: x, turned, to `out`.
template <class T>
GOSSAMER_INLINE void turn_row(const RopeRows& work, const T* x, int64_t head, int64_t position, T* out) {
  GOSSAMER_ASSERT(position >= 0 && position < work.max_positions);
  if (work.weight == nullptr) return turn_as(work, Plain<T>{x}, position, out);
  const T* weight = static_cast<const T*>(work.weight) + head * work.weight_head_stride;
  turn_as(work, Normed<T>{x, weight, rms_scale(x, work.head_dim, work.eps)}, position, out);
}

}  // namespace
}  // namespace gossamer
