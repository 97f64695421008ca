// Tiles of codes from shared memory to registers: operands of mma.sync in float16, K by tokens, V by channels.
#pragma once

#include "attention/decode/code_tiles.h"
#include "attention/decode/expand.cuh"

namespace gossamer::cuda {

// What lane (g, t) = (lane / 4, lane % 4) holds of 8 channels and 32 tokens, in register s: of K the channels 2 t and 2
// t + 1 of token 8 s + g, of V channel g of tokens 8 s + 2 t and 8 s + 2 t + 1.
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
GOSSAMER_INLINE uint32_t multiply_half2(uint32_t x, uint32_t y) {
  return half2_bits(__hmul2(as_half2(x), as_half2(y)));
}

constexpr uint32_t kExponent1024 = 0x64006400u;

// Where a lane finds its row of half a chunk: matrices 0 and 1 are the first 8 rows, 2 and 3 the others.
GOSSAMER_INLINE int half_lane(int lane) { return lane / 16 * 128 + lane % 8 * 16; }

// Cells of a chunk: of half a chunk those of even tokens / 8 in lower bytes, of odd ones in upper bytes, each twice.
// `lane_values`: the address of the values plus 16 bytes for each lane.
template <Side S>
GOSSAMER_INLINE void load_cells(uint32_t lane_values, int chunk, bool half, uint32_t (&cells)[4]) {
  const int lane = threadIdx.x % 32;
  load_matrices<S>(lane_values + chunk + (half ? half_lane(lane) - lane * 16 : 0), cells);
}
// The third bits of codes of 3 bits, next to the others.
template <Side S>
GOSSAMER_INLINE void add_thirds(const CodeTile& tile, uint32_t lane_values, TileOperand& x) {
  uint32_t cells[4];
  load_cells<S>(lane_values, tile.third_chunk, tile.flags & kThirdHalf, cells);
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const uint32_t turn = tile.third_turn + (s % 2 && tile.flags & kThirdHalf ? 8 : 0);
    x[s] = and_or(__funnelshift_r(cells[s], cells[s], turn), tile.third_mask, x[s]);
  }
}

// A tile that is known when the kernel is compiled; `cells` are those of the tile before.
template <Side S>
GOSSAMER_INLINE void load_fixed_tile(const CodeTile& tile, uint32_t lane_values, uint32_t (&cells)[4], TileOperand& x) {
  if (tile.flags & kNewChunk) load_cells<S>(lane_values, tile.chunk, tile.half, cells);
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const bool upper = tile.bytes[s % 2] == 0x4341;
    if (tile.flags & kFloat8) {
      x[s] = fp8_pair(permute(cells[s], 0, upper ? 0x4431 : 0x4420));
    } else if (tile.mask == 0x00ff00ffu) {
      x[s] = permute(cells[s], kExponent1024 >> 8, upper ? 0x4341 : 0x4240);
    } else {
      x[s] = and_or(upper ? cells[s] >> 8 : cells[s], tile.mask, kExponent1024);
    }
  }
  if (tile.flags & kThird) add_thirds<S>(tile, lane_values, x);
  if (tile.flags & kFloat8) return;
#pragma unroll
  for (int s = 0; s < 4; ++s) x[s] = multiply_add2(x[s], tile.multiplier, tile.addend);
}

// A tile by numbers in the kernel's arguments, without a branch but for float8 and 3 bits.
template <Side S>
GOSSAMER_INLINE void load_any_tile(const CodeTile& tile, uint32_t lane_values, int half_offset, TileOperand& x) {
  uint32_t cells[4];
  load_matrices<S>(lane_values + tile.half * half_offset + tile.chunk, cells);
  if (tile.flags & kFloat8) {
#pragma unroll
    for (int s = 0; s < 4; ++s) x[s] = fp8_pair(permute(cells[s], 0, tile.bytes[0] == 0x4341 ? 0x4431 : 0x4420));
    return;
  }
#pragma unroll
  for (int s = 0; s < 4; ++s)
    x[s] = permute(cells[s], kExponent1024 >> 8, tile.bytes[s % 2]) & (tile.mask | 0xff00ff00u);
  if (tile.flags & kThird) add_thirds<S>(tile, lane_values, x);
#pragma unroll
  for (int s = 0; s < 4; ++s) x[s] = multiply_add2(x[s], tile.multiplier, tile.addend);
}

// visit(integral_constant<pair>, low, high) for all pairs of tiles that have bits.
template <Side S, class Tiles, int D, int Pair = 0, class Visit>
GOSSAMER_INLINE void for_pairs(const CodeTable<D>& table, uint32_t lane_values, uint32_t (&cells)[4],
                               const Visit& visit) {
  if constexpr (Pair < D / 16) {
    const CodeTile& first = Tiles::template tile<2 * Pair>(table);
    const CodeTile& second = Tiles::template tile<2 * Pair + 1>(table);
    if (!(first.flags & kEmptyPair)) {
      TileOperand low, high;
      if constexpr (std::is_same_v<Tiles, AnyTiles>) {
        const int lane = threadIdx.x % 32, half_offset = half_lane(lane) - lane * 16;
        load_any_tile<S>(first, lane_values, half_offset, low);
        load_any_tile<S>(second, lane_values, half_offset, high);
      } else {
        load_fixed_tile<S>(first, lane_values, cells, low);
        load_fixed_tile<S>(second, lane_values, cells, high);
      }
      visit(std::integral_constant<int, Pair>{}, low, high);
    }
    for_pairs<S, Tiles, D, Pair + 1>(table, lane_values, cells, visit);
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
