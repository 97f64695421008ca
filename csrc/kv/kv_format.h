// The block format of gossamer/ops/kv_block.py, as the kernels see it.
#pragma once

#include <cstdint>

namespace gossamer {

constexpr int kBlockTokens = 32;
constexpr int kChunk = 8;   // values; a chunk of b-bit values is b bytes
constexpr int kGroup = 32;  // channels that share a scale in Scales::group
constexpr int kMaxHeadDim = 256;
constexpr float kFp8Max = 448.0f;
constexpr uint32_t kInfinity = 0x7f800000u;  // as the bits of a float
constexpr uint32_t kNanRank = kInfinity + 1;
constexpr uint16_t kHalfNan = 0x7e00;

enum class Values { f32, f16, bf16, fp8, i8, i4, i3, i2 };
enum class Scales { none, row, channel, group };

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
};

// Rows of K or V on their way into blocks.
struct KvPack {
  KvFormat format;
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
  int64_t rows;
  int heads;
  const uint8_t* blocks;
  int64_t num_blocks, block_stride, block_head_stride;
  const int64_t* slots;
  void* out;  // contiguous [rows, heads, head_dim]
};

}  // namespace gossamer
