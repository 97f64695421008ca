#pragma once

#include "attention/masked/params.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

// Keys and values are copied to float32 panels of 32 tokens, in the order in which the GEMMs read them.
constexpr int kPanelKeys = kWordKeys;
static constexpr int64_t masked_key_floats(int head_dim) { return int64_t{kPanelKeys} * head_dim; }
static constexpr int64_t masked_value_floats(int head_dim) { return int64_t{kPanelKeys} * ((head_dim + 15) / 16 * 16); }

// A row of tiles of one head.
struct MaskedItem {
  int batch, head, row;
};

constexpr int kMaskedStripRows = 8;    // most queries that are multiplied at once
constexpr int kMaskedGroupPanels = 4;  // most panels that are weighed at once
constexpr int kMaskedRowFloats = 272;  // of a row in memory: not a power of two, whose lines would evict each other
constexpr int kMaskedScoreFloats = kMaskedGroupPanels * kPanelKeys;

// Working memory of a thread.
struct alignas(64) MaskedScratch {
  float q[kMaxMaskedTile * kMaskedRowFloats];
  float sums[kMaxMaskedTile * kMaskedRowFloats];
  float totals[kMaxMaskedTile * 16];  // [row][lanes]: not yet added up
  float maxima[kMaxMaskedTile];
  float scores[kMaskedStripRows * kMaskedScoreFloats];
};

// Panel `panel` of a KV head; what lies beyond its last key becomes 0.
GOSSAMER_DECLARE_CPU_KERNEL(void, masked_pack, const MaskedParams& work, DType dtype, int batch, int kv_head, int panel,
                            float* keys, float* values)
// out and lse of an item from the panels of its KV head, of which those that its tiles name are there.
GOSSAMER_DECLARE_CPU_KERNEL(void, masked_row, const MaskedParams& work, DType dtype, const MaskedItem& item,
                            const float* keys, const float* values, MaskedScratch& scratch)

}  // namespace gossamer
