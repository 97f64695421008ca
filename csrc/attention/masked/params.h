// Attention under a map of tiles, as the kernels see it. The meaning is in gossamer/ops/masked_reference.py.
#pragma once

#include <cstdint>

#include "gossamer/common.h"

namespace gossamer {

constexpr int kWordKeys = 32;  // keys of a word of bits
constexpr int kMaxMaskedTile = 128, kMaxMaskedHeadDim = 256;

// A tensor [batch, heads, tokens, head_dim], last dimension contiguous. Strides in elements.
struct MaskedHeads {
  const void* data;
  int64_t batch_stride, head_stride, token_stride;
};

struct MaskedMap {
  int batch, heads, tile_q, tile_k, rows;  // rows: of tiles, of one batch and head
  int64_t tiles, patterns;
  const int32_t *offsets, *columns, *kinds, *bits, *order;
};

struct MaskedBias {
  const void* data;  // null: none
  DType dtype;
  int64_t batch_stride, head_stride, query_stride, key_stride;  // elements; 0 where it is the same for all
};

struct MaskedParams {
  int batch, heads, kv_heads, q_len, kv_len, head_dim;
  MaskedHeads q, k, v;
  MaskedMap map;
  MaskedBias bias;
  float scale, softcap;  // softcap 0: none
  void* out;             // contiguous [batch, heads, q_len, head_dim]
  float* lse;            // contiguous [batch, heads, q_len]; null: not wanted
};

}  // namespace gossamer
