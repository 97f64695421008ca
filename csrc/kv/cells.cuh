// Chunks of dense codes in registers: 16 bytes of a token. Where bits lie: gossamer/ops/kv_profile.py
#pragma once

#include "gossamer/common.h"
#include "kv/kv_format.h"

namespace gossamer::cuda {

// 8 columns of 16 bits, two to a word: cells of a chunk, or the codes of a group.
struct Cells {
  uint32_t words[4];

  // Bits [from, from + width) of every column.
  __device__ __forceinline__ Cells field(int from, int width) const {
    const uint32_t mask = ((1u << width) - 1) * 0x10001u;
    return {words[0] >> from & mask, words[1] >> from & mask, words[2] >> from & mask, words[3] >> from & mask};
  }
  // Codes to bits [to, ...), which are 0. They do not reach into the next column.
  __device__ __forceinline__ void put(const Cells& codes, int to) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] += codes.words[i] << to;  // one instruction, unlike |=
  }
};

// The last chunk has cells of one byte where 8 bits are left over.
GOSSAMER_INLINE bool is_half(const KvFormat& f, int chunk) { return f.row_bytes < 16 * (chunk + 1); }

// In half a chunk, the 16 bytes that a token shares with the one 8 before or after it.
GOSSAMER_INLINE int half_address(int token) { return token / 16 * 128 + token % 8 * 16; }

GOSSAMER_INLINE Cells load_cells(const KvFormat& f, const uint8_t* block, int token, int chunk) {
  const uint8_t* from = block + f.values_at + chunk * kCodeChunk;
  const bool half = is_half(f, chunk);
  const uint4 v = *reinterpret_cast<const uint4*>(from + (half ? half_address(token) : token * 16));
  const Cells cells{v.x, v.y, v.z, v.w};
  return half ? cells.field(token / 8 % 2 * 8, 8) : cells;
}

// `whole`: all lanes are here, and lane i has token i of one block.
GOSSAMER_INLINE void store_cells(const KvFormat& f, uint8_t* block, int token, int chunk, const Cells& cells,
                                 bool whole) {
  uint8_t* to = block + f.values_at + chunk * kCodeChunk;
  const uint32_t (&v)[4] = cells.words;
  if (!is_half(f, chunk)) {
    *reinterpret_cast<uint4*>(to + token * 16) = {v[0], v[1], v[2], v[3]};
    return;
  }
  to += half_address(token);
  const int upper = token / 8 % 2;
  if (!whole) {
#pragma unroll
    for (int k = 0; k < kChunk; ++k) to[2 * k + upper] = static_cast<uint8_t>(v[k / 2] >> (16 * (k % 2)));
    return;
  }
  // Of the 16 bytes of two tokens, each stores 8.
  uint32_t both[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, v[i], 8);
    both[i] = upper ? other | v[i] << 8 : v[i] | other << 8;
  }
  *reinterpret_cast<uint2*>(to + 8 * upper) = upper ? uint2{both[2], both[3]} : uint2{both[0], both[1]};
}

}  // namespace gossamer::cuda
