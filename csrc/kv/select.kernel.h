// The largest entries of a row, exactly: a radix select over bit planes.
//
// From the highest bit down, the candidates either split (those with the bit set are in, if there are
// too few of them) or shrink to those with the bit set. Time does not depend on the values' order.
// Include from *.kernel.cpp files alone.
#pragma once

#include "gossamer/cpu/vec.h"
#include "kv/kv_format.h"

namespace gossamer {
namespace {

constexpr int kMaskWords = kMaxHeadDim / 32;

// Bit i of the result is bit `bit` of ranks[i], for 32 ranks.
GOSSAMER_INLINE uint32_t plane(const uint32_t* ranks, int bit) {
  uint32_t found = 0;
  for (int i = 0; i < 32; i += kLanes) {
    const U32 r = load_raw<U32>(ranks + i);
#if GOSSAMER_LANES == 16
    const uint32_t part = _mm512_test_epi32_mask(reinterpret_cast<__m512i>(r), _mm512_set1_epi32(1 << bit));
#elif GOSSAMER_LANES == 8
    const uint32_t part = _mm256_movemask_ps(reinterpret_cast<__m256>(r << (31 - bit)));
#else
    uint32_t part = 0;
    for (int k = 0; k < kLanes; ++k) part |= ((r[k] >> bit) & 1u) << k;
#endif
    found |= part << i;
  }
  return found;
}

// The lowest `count` bits that are set in `word`.
GOSSAMER_INLINE uint32_t lowest(uint32_t word, int count) {
  uint32_t rest = word;
  for (int i = 0; i < count; ++i) rest &= rest - 1;
  return word & ~rest;
}

// Sets the bits of the `keep` largest of head_dim ranks in `mask`; ties go to the lower index.
// `ranks` is readable up to a multiple of 32.
GOSSAMER_INLINE void select_largest(const uint32_t* ranks, int head_dim, int keep, uint32_t* mask) {
  const int words = (head_dim + 31) / 32;
  uint32_t candidates[kMaskWords], any = 0, all = ~0u;
  for (int i = 0; i < head_dim; ++i) {
    any |= ranks[i];
    all &= ranks[i];
  }
  for (int w = 0; w < words; ++w) {
    candidates[w] = w * 32 + 32 <= head_dim ? ~0u : (1u << (head_dim % 32)) - 1;
    mask[w] = 0;
  }
  int wanted = keep, left = head_dim;
  for (uint32_t differing = any & ~all; differing != 0 && wanted < left;) {
    const int bit = 31 - __builtin_clz(differing);
    differing &= ~(1u << bit);
    uint32_t ones[kMaskWords];
    int count = 0;
    for (int w = 0; w < words; ++w) {
      ones[w] = candidates[w] & plane(ranks + 32 * w, bit);
      count += __builtin_popcount(ones[w]);
    }
    const bool enough = count >= wanted;
    for (int w = 0; w < words; ++w) {
      mask[w] |= enough ? 0 : ones[w];
      candidates[w] = enough ? ones[w] : candidates[w] & ~ones[w];
    }
    wanted -= enough ? 0 : count;
    left = enough ? count : left - count;
  }
  for (int w = 0; w < words && wanted > 0; ++w) {
    const int here = __builtin_popcount(candidates[w]);
    mask[w] |= here <= wanted ? candidates[w] : lowest(candidates[w], wanted);
    wanted -= here;
  }
}

}  // namespace
}  // namespace gossamer
