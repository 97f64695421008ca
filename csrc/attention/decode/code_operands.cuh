// Tiles of codes from shared memory to registers: operands of mma.sync in float16, K by tokens, V by channels.
#pragma once

#include "attention/decode/code_tiles.h"
#include "attention/decode/expand.cuh"

namespace gossamer::cuda {

// What lane (g, t) = (lane / 4, lane % 4) holds of 8 channels and 32 tokens, in register s: of K the channels 2 t and 2 t + 1
// of token 8 s + g, of V channel g of tokens 8 s + 2 t and 8 s + 2 t + 1.
using TileOperand = uint32_t[4];
enum class Side { k, v };

template <Side S>
GOSSAMER_INLINE void load_matrices(uint32_t address, uint32_t (&x)[4]) {
  if constexpr (S == Side::k) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
  }
}
template <Side S>
GOSSAMER_INLINE void load_matrices(uint32_t address, uint32_t (&x)[2]) {
  if constexpr (S == Side::k) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(address));
  }
}
// The transpose of an 8 x 8 matrix of 16-bit elements that lies in one register of each lane.
GOSSAMER_INLINE uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

GOSSAMER_INLINE uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}
GOSSAMER_INLINE uint32_t half2_bits(__half2 x) { return reinterpret_cast<const uint32_t&>(x); }
GOSSAMER_INLINE uint32_t multiply_add2(uint32_t x, uint32_t y, uint32_t z) {
  return half2_bits(__hfma2(as_half2(x), as_half2(y), as_half2(z)));
}
GOSSAMER_INLINE uint32_t multiply_half2(uint32_t x, uint32_t y) { return half2_bits(__hmul2(as_half2(x), as_half2(y))); }

constexpr uint32_t kExponent1024 = 0x64006400u;

// Cells of a chunk. `lane_values`: the address of the values plus 16 bytes for each lane.
template <Side S>
GOSSAMER_INLINE void load_cells(uint32_t lane_values, int chunk, bool half, uint32_t (&cells)[4]) {
  if (!half) return load_matrices<S>(lane_values + chunk, cells);
  uint32_t two[2];
  const uint32_t lane_offset = threadIdx.x % 32 / 16 * 256;  // only 16 addresses count
  load_matrices<S>(lane_values - lane_offset + chunk, two);
  cells[0] = two[0], cells[1] = two[0] >> 8, cells[2] = two[1], cells[3] = two[1] >> 8;
}

// The next tile; `cells` are those of the tile before.
template <Side S>
GOSSAMER_INLINE void load_tile(const CodeTile& tile, uint32_t lane_values, uint32_t (&cells)[4], TileOperand& x) {
  if (tile.flags & kNewChunk) load_cells<S>(lane_values, tile.chunk, tile.flags & kHalfChunk, cells);
  if (tile.flags & kFloat8) {
#pragma unroll
    for (int s = 0; s < 4; ++s) x[s] = fp8_pair(permute(cells[s], 0, tile.flags & kUpper ? 0x4431 : 0x4420));
    return;
  }
  if (tile.flags & kUpper) {
#pragma unroll
    for (int s = 0; s < 4; ++s) x[s] = and_or(cells[s] >> 8, tile.mask, kExponent1024);
  } else {
#pragma unroll
    for (int s = 0; s < 4; ++s) x[s] = and_or(cells[s], tile.mask, kExponent1024);
  }
  if (tile.flags & kThird) {
    uint32_t thirds[4];
    load_cells<S>(lane_values, tile.third_chunk, tile.flags & kThirdHalf, thirds);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      x[s] = and_or(__funnelshift_r(thirds[s], thirds[s], tile.third_turn), tile.third_mask, x[s]);
    }
  }
#pragma unroll
  for (int s = 0; s < 4; ++s) x[s] = multiply_add2(x[s], tile.multiplier, tile.addend);
}

// visit(integral_constant<pair>, low, high) for all pairs of tiles that have bits.
template <Side S, class Tiles, int Pairs, int Pair = 0, class Visit>
GOSSAMER_INLINE void for_pairs(const CodeTable& table, uint32_t lane_values, uint32_t (&cells)[4], const Visit& visit) {
  if constexpr (Pair < Pairs) {
    const CodeTile& first = Tiles::template tile<2 * Pair>(table);
    if (!(first.flags & kEmptyPair)) {
      TileOperand low, high;
      load_tile<S>(first, lane_values, cells, low);
      load_tile<S>(Tiles::template tile<2 * Pair + 1>(table), lane_values, cells, high);
      visit(std::integral_constant<int, Pair>{}, low, high);
    }
    for_pairs<S, Tiles, Pairs, Pair + 1>(table, lane_values, cells, visit);
  }
}

// Tokens 16 m to 16 m + 15 of K times queries, for two tiles of channels.
template <class T>
GOSSAMER_INLINE void multiply_k(float (&c)[4], const TileOperand& low, const TileOperand& high, int m, uint32_t q_low,
                                uint32_t q_high) {
  Mma<T>::dense(c, low[2 * m], low[2 * m + 1], high[2 * m], high[2 * m + 1], q_low, q_high);
}
// The same of V times weights.
template <class T>
GOSSAMER_INLINE void multiply_v(float (&c)[4], const TileOperand& low, const TileOperand& high, int m,
                                const uint32_t (&weights)[2]) {
  Mma<T>::dense(c, low[2 * m], high[2 * m], low[2 * m + 1], high[2 * m + 1], weights[0], weights[1]);
}

}  // namespace gossamer::cuda
