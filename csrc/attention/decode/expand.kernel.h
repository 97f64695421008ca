// Rows of a block as vectors, slice by slice: of kLanes channels each.
// Include from *.kernel.cpp files alone.
#pragma once

#include "attention/shared/tiles.kernel.h"
#include "kv/rows.kernel.h"

namespace gossamer {
namespace {

#if GOSSAMER_LANES > 4
#if GOSSAMER_LANES == 8
// For each byte of a bitmap, where its 8 channels find their value: from the first one on, -1 for none.
struct ExpandTable {
  int8_t from[256][8];
};
constexpr ExpandTable make_expand_table() {
  ExpandTable table{};
  for (int byte = 0; byte < 256; ++byte) {
    int8_t rank = 0;
    for (int k = 0; k < 8; ++k) table.from[byte][k] = byte >> k & 1 ? rank++ : -1;
  }
  return table;
}
alignas(64) constexpr ExpandTable kExpand = make_expand_table();

GOSSAMER_INLINE __m256i expand_from(uint32_t mask) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kExpand.from[mask])));
}
#endif

// The bits of slice s in a row's bitmap; a slice that is not whole brings bits of the next row.
GOSSAMER_INLINE uint32_t slice_mask(const uint8_t* bitmap, int s) {
#if GOSSAMER_LANES == 16
  uint16_t mask;
  std::memcpy(&mask, bitmap + 2 * s, 2);
  return mask;
#else
  return bitmap[s];
#endif
}

// Lane k is x[k] where its bit is set, else 0.
GOSSAMER_INLINE F32 only(F32 x, uint32_t mask) {
#if GOSSAMER_LANES == 16
  return reinterpret_cast<F32>(_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), reinterpret_cast<__m512>(x)));
#else
  const __m256 from = _mm256_castsi256_ps(expand_from(mask));
  return reinterpret_cast<F32>(_mm256_blendv_ps(reinterpret_cast<__m256>(x), _mm256_setzero_ps(), from));
#endif
}

// Lane k is the next value where its bit is set, else 0.
GOSSAMER_INLINE F32 expand(const float* values, uint32_t mask) {
#if GOSSAMER_LANES == 16
  // On Zen 4 the instruction waits for what was in its result's register before, also where all of that is
  // replaced: half as fast. A zero that the compiler does not recognise makes it start from a fresh register.
  // Nor may the compiler make one instruction of it and the load, which is 5% slower.
  __m512 zero = _mm512_setzero_ps(), packed = _mm512_loadu_ps(values);
  asm("" : "+v"(zero), "+v"(packed));
  return reinterpret_cast<F32>(_mm512_mask_expand_ps(zero, static_cast<__mmask16>(mask), packed));
#else
  const __m256i from = expand_from(mask);
  const __m256 spread = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), from);
  return reinterpret_cast<F32>(_mm256_blendv_ps(spread, _mm256_setzero_ps(), _mm256_castsi256_ps(from)));
#endif
}

// Sparse rows that are spread out while they are read.
struct SparseRows {
  const uint8_t* bitmap;
  const float* entries;
  int bitmap_stride, stride;

  struct Cursor {
    const uint8_t* bitmap;
    const float* next;
  };
  __attribute__((always_inline)) Cursor at(int token) const {
    return {bitmap + token * bitmap_stride, entries + token * stride};
  }
  GOSSAMER_INLINE F32 take(Cursor& cursor, int s) {
    const uint32_t mask = slice_mask(cursor.bitmap, s);
    const F32 x = expand(cursor.next, mask);
    cursor.next += __builtin_popcount(mask);
    return x;
  }
};

// As spread_row.
GOSSAMER_INLINE void expand_row(const KvFormat& f, const uint8_t* bitmap, const float* entries,
                                const ChannelScales* scales, float* row) {
  const int slices = (f.head_dim + kLanes - 1) / kLanes;
  const uint32_t last = (1u << ((f.head_dim - 1) % kLanes + 1)) - 1;
  for (int s = 0; s < slices; ++s) {
    const uint32_t mask = slice_mask(bitmap, s) & (s == slices - 1 ? last : ~0u);
    F32 x = expand(entries, mask);
    if (scales) x = only(x * load(scales->scale + s * kLanes) + load(scales->minimum + s * kLanes), mask);
    store(row + s * kLanes, x);
    entries += __builtin_popcount(mask);
  }
}
#else
GOSSAMER_INLINE void expand_row(const KvFormat& f, const uint8_t* bitmap, const float* entries,
                                const ChannelScales* scales, float* row) {
  spread_row(f, bitmap, entries, scales, row);
}
#endif

// Buffers for the rows of one block.
struct RowBuffers {
  float* rows;     // [32][padded head_dim]
  float* entries;  // [32][stored values], and a row more: bits that nobody wrote lead there
};

// Not inline: there is a loop for each type of value in it.
__attribute__((noinline)) static void load_block(const KvFormat& f, const uint8_t* block, float* x, int stride) {
  load_entries(f, block, 0, kBlockTokens, x, stride);
}

// All rows of a block, spread out; `stride` is head_dim rounded up to 16, and slices end with zeros.
__attribute__((noinline)) static void load_rows(const KvFormat& f, const uint8_t* block, const RowBuffers& b,
                                                int stride) {
  ChannelScales channels;
  const ChannelScales* scales = f.scales == Scales::channel ? &channels : nullptr;
  const int stored = f.chunks * kChunk;
  if (scales) load_channel_scales(f, block, channels);
  load_block(f, block, f.sparse ? b.entries : b.rows, f.sparse ? stored : stride);
  for (int t = 0; t < kBlockTokens; ++t) {
    float* row = b.rows + t * stride;
    if (f.sparse) {
      expand_row(f, block + t * (f.head_dim / 8), b.entries + t * stored, scales, row);
      continue;
    }
    for (int c = f.head_dim; c < stride; ++c) row[c] = 0;
    for (int c = 0; scales && c < stride; ++c) row[c] = row[c] * scales->scale[c] + scales->minimum[c];
  }
}

}  // namespace
}  // namespace gossamer
