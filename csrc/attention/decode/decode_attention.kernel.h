#pragma once

#include "attention/decode/code_planes.h"
#include "attention/decode/params.h"
#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"

namespace gossamer {

constexpr int kMaxQueryLength = 8;
constexpr int kMaxDecodeRows = 16 * kMaxQueryLength;  // queries that share a KV head

// Some blocks of one sequence and KV head.
struct DecodeItem {
  int sequence, kv_head;
  int begin, end;  // blocks
};

// What an item leaves behind, for each row (query, head of the group): sums of weighted values
// [rows][padded_dim], then maxima [rows], then sums of weights [rows].
struct DecodePartial {
  int rows, padded_dim;
  int64_t floats;
};
static constexpr DecodePartial decode_partial(const DecodeParams& work) {
  const int rows = work.q_len * work.group, padded = (work.head_dim + 15) / 16 * 16;
  return {rows, padded, (static_cast<int64_t>(rows) * (padded + 2) + 15) / 16 * 16};
}

constexpr int kMaxScaleGroups = kMaxHeadDim / kGroup;

// Working memory of a thread for dense codes; only the planes are there from the start, of formats that have codes.
struct alignas(64) CodeScratch {
  float rows[kBlockTokens * kMaxLanes];
  float q[kMaxDecodeRows * kMaxLanes];  // queries in the order of lanes
  float block_rows[kMaxDecodeRows * kMaxLanes];  // queries times scales, or sums of values, of one block
  float sums[kMaxDecodeRows * kMaxLanes];        // of values, in the order of lanes
  float q_rest[kMaxDecodeRows];                  // queries times what is added to codes
  float q_groups[kMaxDecodeRows * kMaxScaleGroups];  // sums of queries over 32 channels
  float lane_scales[kMaxLanes];
  float scales[kMaxScaleGroups * kBlockTokens], minima[kMaxScaleGroups * kBlockTokens];
  uint8_t last_chunk[kCodeChunk];
  CodePlanes k_planes, v_planes;
};

// Working memory of a thread.
struct alignas(64) DecodeScratch {
  float rows[kBlockTokens * kMaxHeadDim];
  float entries[(kBlockTokens + 1) * kMaxHeadDim + 16];
  float terms[4 * kBlockTokens * 16];
  float scores[kMaxDecodeRows * kBlockTokens];
  float totals[kMaxDecodeRows * 16];
  float shrink[kMaxDecodeRows];
  float q[kMaxDecodeRows * kMaxHeadDim];
  CodeScratch codes;
};

// Lengths and pages are checked.
GOSSAMER_DECLARE_CPU_KERNEL(void, decode_blocks, const DecodeParams& work, DType dtype, const DecodeItem& item,
                            DecodeScratch& scratch, float* partial)
// Puts the partial results of a sequence and KV head together: `count` of them, maybe 0.
GOSSAMER_DECLARE_CPU_KERNEL(void, decode_merge, const DecodeParams& work, DType dtype, int sequence, int kv_head,
                            const float* partials, int count)

}  // namespace gossamer
