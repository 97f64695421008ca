// How the fields of a dense row of codes become operands of the tensor cores, 8 channels (a tile) at a time.
//
// A register of two 16-bit cells, masked and joined with the exponent of 1024 in float16, is a pair of 1024 + code *
// 2^at, for a field at bit `at` of the cells' lower or upper byte; a multiplication and an addition make the code of
// it, without a rounding. So a tile is four numbers in the kernel's arguments, and one kernel takes all profiles.
#pragma once

#include <algorithm>

#include "kv/kv_format.h"

namespace gossamer {

struct CodeTile {
  uint32_t mask;                    // of the field in both cells, as in the lower byte
  uint32_t multiplier, addend;      // float16 pairs: code - 2^(b-1) of 1024 + code * 2^at
  uint32_t flags;                   // see below
  int chunk;                        // bytes from the values to the chunk that has it
  int third_chunk;                  // the same for the third of 3 bits
  uint32_t third_mask, third_turn;  // where it belongs next to the other two, and the rotation that brings it there
  uint32_t bytes[2];  // which bytes of two cells have it, for PRMT: of tokens whose number / 8 is even, odd
  int half;           // whether cells are of one byte
};

enum CodeFlags : uint32_t {
  kNewChunk = 1,    // the chunk of the tile before was another
  kHalfChunk = 2,   // cells of one byte
  kUpper = 4,       // the field is in the upper byte of its cell
  kThird = 8,       // has a third bit
  kThirdHalf = 16,  // which is in a chunk with cells of one byte
  kFloat8 = 32,     // the code is a number itself
  kEmptyPair = 64,  // no bits, neither in this tile nor in the other one of its pair
};

template <int D>
struct CodeTable {
  CodeTile tiles[D / kChunk];
};

namespace code_tiles {
constexpr uint32_t pair(uint32_t half) { return half | half << 16; }
// A number of at most 11 bits times a power of two, as float16.
constexpr uint32_t half_bits(float x) {
  uint32_t sign = 0;
  if (x < 0) sign = 0x8000, x = -x;
  if (x == 0) return sign;
  int exponent = 15;
  while (x >= 2) x /= 2, ++exponent;
  while (x < 1) x *= 2, --exponent;
  return sign | static_cast<uint32_t>(exponent) << 10 | static_cast<uint32_t>((x - 1) * 1024);
}
}  // namespace code_tiles

constexpr CodeTile code_tile(const KvFormat& f, int group) {
  using namespace code_tiles;
  const auto half_chunk = [&](int at) { return f.row_bytes % 16 != 0 && at / 16 == f.row_bytes / 16; };
  CodeTile t{};
  const int bits = f.group_bits[group], at = f.group_at[group];
  if (bits == 0) {
    t.flags = f.group_bits[group ^ 1] == 0 ? kEmptyPair : 0;
    t.bytes[0] = t.bytes[1] = 0x4240;
    return t;  // mask, multiplier and addend of zero: the tile is 1024 times zero
  }
  const int low = at % 8;
  t.mask = pair(((1u << (bits == 3 ? 2 : bits)) - 1) << low);
  t.multiplier = pair(half_bits(1.0f / static_cast<float>(1 << low)));
  t.addend = pair(half_bits(-1024.0f / static_cast<float>(1 << low) - static_cast<float>(1 << (bits - 1))));
  t.chunk = at / 16 * kCodeChunk;
  bool fresh = true;
  for (int g = group - 1; g >= 0 && fresh; --g) {
    if (f.group_bits[g] != 0 && f.group_at[g] / 16 == at / 16) fresh = false;
    if (f.group_bits[g] != 0) break;
  }
  t.flags = (fresh ? kNewChunk : 0) | (half_chunk(at) ? kHalfChunk : 0) | (at % 16 >= 8 ? kUpper : 0) |
            (f.values == Values::fp8 ? kFloat8 : 0);
  t.half = half_chunk(at);
  for (int odd = 0; odd < 2; ++odd) t.bytes[odd] = at % 16 >= 8 || (odd && half_chunk(at)) ? 0x4341 : 0x4240;
  if (bits == 3) {
    const int third = f.group_third[group];
    t.flags |= kThird | (half_chunk(third) ? kThirdHalf : 0);
    t.third_chunk = third / 16 * kCodeChunk;
    t.third_mask = pair(4u << low);
    t.third_turn = static_cast<uint32_t>(third % 16 - (low + 2)) & 31;
  }
  return t;
}

template <int D>
CodeTable<D> code_table(const KvFormat& f) {
  CodeTable<D> table{};
  for (int g = 0; g < D / kChunk; ++g) table.tiles[g] = code_tile(f, g);
  return table;
}

// The same where all tiles are known when a kernel is compiled: bits of eighths of a row, or all alike.
template <int D, Values V, int... Bits>
struct FixedTiles {
  static constexpr KvFormat format() {
    KvFormat f{};
    const int bits[] = {Bits...};
    f.values = V;
    f.head_dim = D;
    for (int g = 0; g < D / kChunk; ++g) {
      f.group_bits[g] = static_cast<uint8_t>(bits[g * static_cast<int>(sizeof...(Bits)) / (D / kChunk)]);
    }
    set_fields(f);
    return f;
  }
  template <int Group>
  static constexpr CodeTile tile(const CodeTable<D>&) {
    constexpr CodeTile t = code_tile(format(), Group);
    return t;
  }
  // As in the kernel's arguments, made once.
  template <int>
  static const CodeTable<D>& table(const KvFormat&) {
    static const CodeTable<D> made = code_table<D>(format());
    return made;
  }
  // Whether a format is this one.
  static bool matches(const KvFormat& f) {
    const KvFormat mine = format();
    return (f.values == Values::fp8) == (V == Values::fp8) &&
           std::equal(mine.group_bits, mine.group_bits + D / kChunk, f.group_bits);
  }
};
// Any tiles, as the kernel's arguments say.
struct AnyTiles {
  template <int D>
  static CodeTable<D> table(const KvFormat& f) {
    return code_table<D>(f);
  }
  template <int Group, int D>
  static constexpr const CodeTile& tile(const CodeTable<D>& table) {
    return table.tiles[Group];
  }
};

}  // namespace gossamer
