// The largest entries of a row per lane, exactly: a radix select over bit planes.
//
// A lane owns a row. Eight ranks' bytes at a time are transposed in registers, so that word g of plane b
// holds bit b of entries 32 g .. 32 g + 31; then each bit either splits the candidates or shrinks them,
// by a population count. No shuffle, no divergence, no dependence on the data: about 30 instructions
// of a warp per row of 128, where a search for the threshold by comparisons takes three times as many.
#pragma once

#include "gossamer/common.h"
#include "kv/kv_format.h"

namespace gossamer::cuda {

// Bit b of byte j of words[w] to bit w of byte j of words[b].
GOSSAMER_INLINE void transpose_bits(uint32_t (&words)[8]) {
  const auto swap = [&](int i, int j, int shift, uint32_t low) {
    const uint32_t a = words[i], b = words[j];
    words[i] = (a & low) | ((b << shift) & ~low);
    words[j] = ((a >> shift) & low) | (b & ~low);
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) swap(i, i + 4, 4, 0x0f0f0f0fu);
#pragma unroll
  for (int i = 0; i < 8; i += i % 4 == 1 ? 3 : 1) swap(i, i + 2, 2, 0x33333333u);
#pragma unroll
  for (int i = 0; i < 8; i += 2) swap(i, i + 1, 1, 0x55555555u);
}

template <int Words>
struct Selection {
  uint32_t candidates[Words], selected[Words];
  int wanted;

  __device__ __forceinline__ Selection(int head_dim, int keep) : wanted(keep) {
#pragma unroll
    for (int g = 0; g < Words; ++g) {
      const int left = head_dim - 32 * g;
      candidates[g] = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1 : 0;
      selected[g] = 0;
    }
  }

  // One bit of all entries: those with the bit set are in when there are fewer than wanted, else they
  // are the candidates that remain.
  __device__ __forceinline__ void split(const uint32_t (&planes)[Words][8], int bit) {
    int count = 0;
#pragma unroll
    for (int g = 0; g < Words; ++g) count += __popc(candidates[g] & planes[g][bit]);
    const bool enough = count >= wanted;
    const uint32_t mask = enough ? ~0u : 0;
#pragma unroll
    for (int g = 0; g < Words; ++g) {
      selected[g] |= candidates[g] & planes[g][bit] & ~mask;
      candidates[g] &= ~(planes[g][bit] ^ mask);
    }
    wanted -= enough ? 0 : count;
  }

  // Whether the candidates that remain are all in.
  __device__ __forceinline__ bool decided() const {
    int count = 0;
#pragma unroll
    for (int g = 0; g < Words; ++g) count += __popc(candidates[g]);
    return count == wanted;
  }

  // What is left is equal: the lowest channels win.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int g = 0; g < Words; ++g) {
      uint32_t word = candidates[g];
      int excess = __popc(word) - wanted;
      wanted = excess < 0 ? -excess : 0;
      for (; excess > 0; --excess) word ^= 0x80000000u >> __clz(word);
      selected[g] |= word;
    }
  }
};

}  // namespace gossamer::cuda
