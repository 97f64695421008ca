// From tensors to KvPack and KvUnpack: the checks that kv_pack, kv_append and kv_unpack share.
#pragma once

#include <optional>
#include <string>

#include "gossamer/torch/tensor.h"
#include "kv/kv_format.h"

namespace gossamer {

// Throws for a combination that BlockFormat in gossamer/ops/kv_block.py refuses.
KvFormat parse_kv_format(const char* op, int64_t head_dim, std::optional<int64_t> keep, const std::string& values,
                         const std::string& scales);

// A tensor of this type on the device of `like`.
void check_plain(const char* op, const char* name, const Tensor& t, ScalarType type, const Tensor& like);
// uint8 [blocks, heads, bytes of a block], each block contiguous and aligned.
void check_blocks(const char* op, const char* name, const Tensor& blocks, const KvFormat& format, const Tensor& like);
int checked_heads(const char* op, int64_t heads);
Tensor dense(const Tensor& t);
// `t` itself where its rows are contiguous (and on a GPU can be read 16 bytes at a time), else a copy.
Tensor with_dense_rows(const Tensor& t);

// A checked call; the tensors keep the memory alive that `work` points to.
struct KvPackCall {
  KvPack work;
  DType dtype;
  Tensor x, slots, table, weights, scores;
};
// `table` is set for kv_append, whose `slots` are positions.
KvPackCall prepare_kv_pack(const char* op, const Tensor& x, const Tensor& blocks, const Tensor& slots,
                           const std::optional<Tensor>& table, std::optional<int64_t> keep, const std::string& values,
                           const std::string& scales, const std::optional<Tensor>& weights,
                           const std::optional<Tensor>& scores);

struct KvUnpackCall {
  KvUnpack work;
  DType dtype;
  Tensor slots, out;
};
KvUnpackCall prepare_kv_unpack(const Tensor& blocks, const Tensor& slots, int64_t head_dim, std::optional<int64_t> keep,
                               const std::string& values, const std::string& scales, ScalarType dtype);

}  // namespace gossamer
