// What the entries of a lane's row rank by, and the choice of the largest.
#pragma once

#include <type_traits>

#include "gossamer/cuda/vector.cuh"
#include "kv/select.cuh"

namespace gossamer::cuda {

// 16-bit elements that rank by their own magnitude: two bytes, as they lie in memory.
template <class T>
struct OwnRanks {
  static constexpr int kBytes = 2;
  static constexpr int kLowestExponentBit = std::is_same_v<T, __half> ? 2 : 0;  // in the upper byte
  static constexpr uint32_t kNan = std::is_same_v<T, __half> ? 0x7c017c01u : 0x7f817f81u;
  const T* row;
  int head_dim;

  // words[k]: one byte of the ranks of entries k, 8 + k, 16 + k and 24 + k of a group of 32.
  template <bool Clamp>
  __device__ __forceinline__ void load(int group, int byte, uint32_t (&words)[8]) const {
    const uint32_t pick = byte == 1 ? 0x7531 : 0x6420;
    uint4 pieces[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int c = 32 * group + 8 * j;
      pieces[j] = c < head_dim ? *reinterpret_cast<const uint4*>(row + c) : uint4{};
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const auto pair = [&](int j) {
        const uint32_t word = reinterpret_cast<const uint32_t*>(&pieces[j])[p];
        return Clamp ? __vminu2(word & 0x7fff7fffu, kNan) : word;
      };
      const uint32_t a = __byte_perm(pair(0), pair(1), pick), b = __byte_perm(pair(2), pair(3), pick);
      words[2 * p] = __byte_perm(a, b, 0x6420);
      words[2 * p + 1] = __byte_perm(a, b, 0x7531);
    }
  }
};

// Float32 elements, weighted magnitudes or given scores: four bytes, computed anew for each. That takes
// fewer cycles than keeping them: floating-point units run next to the integer units, which are the bottleneck.
template <class T>
struct FloatRanks {
  static constexpr int kBytes = 4;
  static constexpr int kLowestExponentBit = 0;
  const T* row;
  int head_dim;
  const float* weights;  // of this head, or null
  const float* scores;   // of this row, or null

  __device__ __forceinline__ void load8(int c, float (&x)[8]) const {
    if (scores != nullptr) {
      load_floats(scores + c, x);
    } else {
      load_floats(row + c, x);
    }
    if (weights != nullptr) {
      float w[8];
      load_floats(weights + c, w);
#pragma unroll
      for (int k = 0; k < 8; ++k) x[k] = __fmul_rn(x[k], w[k]);
    }
  }
  template <bool Clamp>
  __device__ __forceinline__ void load(int group, int byte, uint32_t (&words)[8]) const {
    const uint32_t pick = byte | (byte + 4) << 4;
    float x[4][8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int c = 32 * group + 8 * j;
      if (c < head_dim) {
        load8(c, x[j]);
      } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) x[j][k] = 0.0f;
      }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const auto rank = [&](int j) {
        const uint32_t bits = __float_as_uint(x[j][k]);
        return Clamp ? min(bits & 0x7fffffffu, kNanRank) : bits;
      };
      words[k] = __byte_perm(__byte_perm(rank(0), rank(1), pick), __byte_perm(rank(2), rank(3), pick), 0x5410);
    }
  }
};

// Whether an entry of any lane may be NaN, by the upper bytes of the ranks.
template <class Ranks, int Words>
GOSSAMER_INLINE bool may_have_nan(const uint32_t (&planes)[Words][8]) {
  uint32_t found = 0;
#pragma unroll
  for (int g = 0; g < Words; ++g) {
    uint32_t all = ~0u;
#pragma unroll
    for (int bit = Ranks::kLowestExponentBit; bit < 7; ++bit) all &= planes[g][bit];
    found |= all;
  }
  return __any_sync(~0u, found != 0);
}

// The entries of the lane's row that stay; false, and nothing, when a NaN may need clamping.
template <bool Clamp, class Ranks, int Words>
GOSSAMER_INLINE bool try_select(const Ranks& ranks, int keep, uint32_t (&selected)[Words]) {
  constexpr int top = Ranks::kBytes - 1;
  Selection<Words> selection(ranks.head_dim, keep);
#pragma unroll 1
  for (int byte = top; byte >= 0; --byte) {
    if (top == 3 && byte < 2 && __all_sync(~0u, selection.decided())) break;
    uint32_t planes[Words][8];
#pragma unroll
    for (int g = 0; g < Words; ++g) {
      ranks.template load<Clamp>(g, byte, planes[g]);
      transpose_bits(planes[g]);
    }
    if (!Clamp && byte == top && may_have_nan<Ranks>(planes)) return false;
    if (byte < top) selection.split(planes, 7);  // the top bit is the sign
#pragma unroll
    for (int bit = 6; bit >= 0; --bit) selection.split(planes, bit);
  }
  selection.finish();
#pragma unroll
  for (int g = 0; g < Words; ++g) selected[g] = selection.selected[g];
  return true;
}

// Entries that may be NaN rank alike only after a clamp, which is rare enough to start anew for.
template <class Ranks, int Words>
GOSSAMER_INLINE void select_row(const Ranks& ranks, int keep, uint32_t (&selected)[Words]) {
  if (!try_select<false>(ranks, keep, selected)) try_select<true>(ranks, keep, selected);
}

}  // namespace gossamer::cuda
