// The block format of gossamer/ops/kv_block.py, as the kernels see it.
#pragma once

#include <cstdint>

namespace gossamer {

constexpr int kBlockTokens = 32;
constexpr int kChunk = 8;   // values; a chunk of b-bit values is b bytes
constexpr int kGroup = 32;  // channels that share a scale in Scales::group
constexpr int kMaxHeadDim = 256;
constexpr int kMaxGroups = kMaxHeadDim / kChunk;  // of 8 channels, of a dense row of codes
constexpr int kCodeChunk = 512;  // bytes: 16 of each token, 8 cells of 16 bits (gossamer/ops/kv_profile.py)
constexpr float kFp8Max = 448.0f;
constexpr uint32_t kInfinity = 0x7f800000u;  // as the bits of a float
constexpr uint32_t kNanRank = kInfinity + 1;
constexpr uint16_t kHalfNan = 0x7e00;

enum class Values { f32, f16, bf16, fp8, i8, i4, i3, i2, profile };
enum class Scales { none, row, channel, group };

// Bits [shift, shift + width) of the codes of a group of 8 channels, at `at` of their columns' lines.
struct KvField {
  uint8_t group, at, width, shift;
};

struct KvFormat {
  Values values;
  Scales scales;
  int head_dim;
  int keep;       // entries of a row; head_dim when dense
  bool sparse;    // has a bitmap
  int bits;       // of a value
  int chunks;     // of 8 values in a row
  int values_at;  // bytes from the start of the block
  int scales_at;
  int block_bytes;
  // Dense rows of codes (row_bytes > 0), as Profile in gossamer/ops/kv_profile.py.
  int row_bytes;                    // a multiple of 8; also the bits of a column's line
  uint8_t group_bits[kMaxGroups];   // of each group of 8 channels: 8, 4, 3, 2 or 0
  uint8_t group_at[kMaxGroups];     // where its field is in the line; of 3 bits: the lower two
  uint8_t group_third[kMaxGroups];  // of 3 bits: the third

  bool has_codes() const { return row_bytes > 0; }
};

// Fields of dense codes, from the bits of the groups: as Profile.fields in gossamer/ops/kv_profile.py.
constexpr void set_fields(KvFormat& f) {
  const int groups = f.head_dim / kChunk, widths[4] = {8, 4, 2, 1};
  int at = 0;
  for (int width : widths) {
    for (int g = 0; g < groups; ++g) {
      const int bits = f.group_bits[g];
      const bool third = width == 1 && bits == 3, here = third || bits == width || (width == 2 && bits == 3);
      if (!here) continue;
      (third ? f.group_third : f.group_at)[g] = static_cast<uint8_t>(at);
      at += width;
    }
  }
  f.row_bytes = (at + 7) / 8 * 8;
}

// The same in the order of the line; those of third bits last.
struct KvFields {
  int count;
  KvField fields[2 * kMaxGroups];
};
constexpr KvFields fields_of(const KvFormat& f) {
  KvFields list{};
  const uint8_t widths[4] = {8, 4, 2, 1};
  for (uint8_t width : widths) {
    for (int g = 0; f.row_bytes > 0 && g < f.head_dim / kChunk; ++g) {
      const int bits = f.group_bits[g];
      const bool third = width == 1 && bits == 3, here = third || bits == width || (width == 2 && bits == 3);
      const uint8_t shift = third ? 2 : 0;
      if (here)
        list.fields[list.count++] = {static_cast<uint8_t>(g), third ? f.group_third[g] : f.group_at[g], width, shift};
    }
  }
  return list;
}

// BEST_STEP in gossamer/ops/kv_profile.py.
constexpr float best_step(int bits) {
  return bits == 8 ? 0.0308f : bits == 4 ? 0.3352f : bits == 3 ? 0.5860f : bits == 2 ? 0.9957f : 0.0f;
}

// The byte of a dense row of codes, of the 32 of a block, that has bits [8 * byte, 8 * byte + 8) of a column's line.
constexpr int code_address(int row_bytes, int token, int byte, int column) {
  const int chunk = byte / 2 * kCodeChunk + column * 2;
  const bool half = row_bytes % 16 != 0 && byte == row_bytes / 8 - 1;  // of the last chunk
  return half ? chunk + token / 16 * 128 + token % 8 * 16 + token / 8 % 2 : chunk + token * 16 + byte % 2;
}

// Rows of K or V on their way into blocks.
struct KvPack {
  KvFormat format;
  KvFields fields;
  int64_t rows;
  int heads;
  const void* x;  // rows of head_dim elements side by side
  int64_t x_row_stride, x_head_stride;
  uint8_t* blocks;
  int64_t num_blocks, block_stride, block_head_stride;  // bytes
  const int64_t* slots;                                 // or positions, with a block table
  const int32_t* table;                                 // null: slots are given
  int64_t table_stride, table_width;
  const float* weights;  // [heads, head_dim] or null
  const float* scores;   // like x or null
  int64_t score_row_stride, score_head_stride;
};

// Blocks on their way back into rows.
struct KvUnpack {
  KvFormat format;
  KvFields fields;
  int64_t rows;
  int heads;
  const uint8_t* blocks;
  int64_t num_blocks, block_stride, block_head_stride;
  const int64_t* slots;
  void* out;  // contiguous [rows, heads, head_dim]
};

}  // namespace gossamer
