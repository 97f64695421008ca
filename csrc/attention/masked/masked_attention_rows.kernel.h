#pragma once

#include "attention/masked/params.h"
#include "gossamer/cpu/isa.h"
#include "kv/kv_format.h"

namespace gossamer {

constexpr int kMaskedSharedHeads = 16;  // heads that share a list of keys at once, at most

// The keys of queries, ascending in each list.
struct MaskedLists {
  const int32_t* offsets;  // [groups * q_len + 1]
  const int32_t* keys;
};

// A query of some heads of one KV head.
struct MaskedListItem {
  int batch, first_head, heads, query;
};

// Working memory of a thread.
struct alignas(64) MaskedListScratch {
  float q[kMaskedSharedHeads * kMaxMaskedHeadDim];
  float sums[kMaskedSharedHeads * kMaxMaskedHeadDim];
  float rows[kBlockTokens * kMaxMaskedHeadDim];  // of K, then of V
  float terms[4 * kBlockTokens * 16];
  float scores[kMaskedSharedHeads * kBlockTokens];
  float totals[kMaskedSharedHeads * 16];  // [head][lanes]: not yet added up
  float maxima[kMaskedSharedHeads], shrink[kMaskedSharedHeads];
};

// out and lse of an item. Lists are checked.
GOSSAMER_DECLARE_CPU_KERNEL(void, masked_list, const MaskedParams& work, DType dtype, const MaskedLists& lists,
                            const MaskedListItem& item, MaskedListScratch& scratch)

}  // namespace gossamer
