#include "rope.kernel.h"

#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

// ---- pairs (i, i + pairs): two vectors of one channel each --------------------------
template <class T>
GOSSAMER_INLINE void turn_halves(const T* x, const float* cos, const float* sin, T* out, int64_t pairs) {
  const auto whole_vector = [&](int64_t i) {
    const F32 a = load(x + i), b = load(x + pairs + i), c = load(cos + i), s = load(sin + i);
    store(out + i, a * c - b * s);
    store(out + pairs + i, b * c + a * s);
  };
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) whole_vector(i);
  if (i == pairs) return;
  if (pairs >= kLanes) return whole_vector(pairs - kLanes);  // once more, for some: cheaper than a partial one
  const F32 a = load_partial(x, pairs), b = load_partial(x + pairs, pairs);
  const F32 c = load_partial(cos, pairs), s = load_partial(sin, pairs);
  store_partial(out, a * c - b * s, pairs);
  store_partial(out + pairs, b * c + a * s, pairs);
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

template <class T>
GOSSAMER_INLINE void turn_neighbours(const T* x, const float* cos, const float* sin, T* out, int64_t pairs) {
  const auto whole_vector = [&](int64_t i) { store(out + i, turn_neighbours(load(x + i), cos + i / 2, sin + i / 2)); };
  const int64_t n = 2 * pairs;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) whole_vector(i);
  if (i == n) return;
  if (n >= kLanes) return whole_vector(n - kLanes);
  float some_cos[kLanes / 2] = {}, some_sin[kLanes / 2] = {};
  std::memcpy(some_cos, cos, pairs * sizeof(float));
  std::memcpy(some_sin, sin, pairs * sizeof(float));
  store_partial(out, turn_neighbours(load_partial(x, n), some_cos, some_sin), n);
}

template <class T>
void rope_rows(const Rope& work, int64_t begin, int64_t end) {
  const int64_t turned = 2 * work.pairs, rest = work.head_dim - turned;
  int64_t token = begin / work.heads, head = begin % work.heads;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t position = work.positions[token * work.position_stride];
    const float* cos = work.cos + position * work.pairs;
    const float* sin = work.sin + position * work.pairs;
    const T* x = static_cast<const T*>(work.x) + token * work.token_stride + head * work.head_stride;
    T* out = static_cast<T*>(work.out) + row * work.head_dim;
    GOSSAMER_ASSERT(position >= 0 && position < work.max_positions);
    if (work.interleaved) {
      turn_neighbours(x, cos, sin, out, work.pairs);
    } else {
      turn_halves(x, cos, sin, out, work.pairs);
    }
    if (rest > 0) std::memcpy(out + turned, x + turned, rest * sizeof(T));
    if (++head == work.heads) {
      head = 0;
      ++token;
    }
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void rope(const Rope& work, int64_t begin, int64_t end) {
  switch (work.dtype) {
    case DType::f32:
      return rope_rows<float>(work, begin, end);
    case DType::f16:
      return rope_rows<f16_t>(work, begin, end);
    case DType::bf16:
      return rope_rows<bf16_t>(work, begin, end);
  }
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
