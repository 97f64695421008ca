// Decode attention over paged blocks, as the kernels see it. The meaning is in gossamer/ops/decode_reference.py.
#pragma once

#include <cstdint>

#include "kv/kv_format.h"

namespace gossamer {

// K and V blocks with one page table: the compressed ones, or the dense ones of the window.
struct DecodePool {
  KvFormat k, v;
  const uint8_t *k_blocks, *v_blocks;
  int64_t k_block_stride, k_head_stride, v_block_stride, v_head_stride;  // bytes
  int64_t num_blocks;                                                    // the smaller of K's and V's
  const int32_t* table;                                                  // null: there is no such pool
  int64_t table_stride;
};

constexpr int kOffsetUnit = 16;  // bytes that offsets of blocks are counted in: 64 GiB in 32 bits

struct DecodeParams {
  int sequences, q_len, kv_heads, group, head_dim;
  bool bf16;      // q and out are bfloat16
  const void* q;  // [sequences, q_len, kv_heads * group, head_dim], last dimension contiguous
  int64_t q_seq_stride, q_token_stride, q_head_stride;  // elements
  const int32_t* seq_lens;
  int page_blocks;                 // blocks of a page
  int max_blocks;                  // blocks that fit the narrower table
  int window_blocks, sink_blocks;  // of the dense pool
  float scale, softcap;            // softcap 0: none
  int sliding;                     // tokens; 0: all
  void* out;                       // contiguous, like q
  float* lse;                      // contiguous [sequences, q_len, kv_heads * group]
  DecodePool main, dense;          // last: what a kernel needs first should lie close together
};

}  // namespace gossamer
