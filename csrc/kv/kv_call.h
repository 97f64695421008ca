// From tensors to KvPack and KvUnpack: the checks that kv_pack, kv_append and kv_unpack share.
#pragma once

#include "gossamer/torch/arguments.h"
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

// The arguments of kv_pack: as in its schema in csrc/bindings.cpp and in gossamer/ops/kv_pack.py.
struct KvPackArguments : BoxedArguments {
  KvPackArguments(StableIValue* stack, uint64_t count, bool appends = false)
      : BoxedArguments(stack, count), appends(appends) {}
  bool appends;
  Tensor x = tensor(), blocks = tensor();
  std::optional<Tensor> table = appends ? std::optional(tensor()) : std::nullopt;
  Tensor slots = tensor();  // of kv_append: positions
  std::optional<int64_t> keep = maybe_integer();
  std::string values = text(), scales = text();
  std::optional<Tensor> weights = maybe_tensor(), scores = maybe_tensor();
};
// Of kv_append: with a table.
struct KvAppendArguments : KvPackArguments {
  KvAppendArguments(StableIValue* stack, uint64_t count) : KvPackArguments(stack, count, true) {}
};
struct KvUnpackArguments : BoxedArguments {
  using BoxedArguments::BoxedArguments;
  Tensor blocks = tensor(), slots = tensor();
  int64_t head_dim = integer();
  std::optional<int64_t> keep = maybe_integer();
  std::string values = text(), scales = text();
  ScalarType dtype = scalar_type();
};

// A checked call; the tensors keep the memory alive that `work` points to.
struct KvPackCall {
  const char* op;
  KvPack work;
  DType dtype;
  Tensor x, slots, table, weights, scores;
};
KvPackCall prepare_kv_pack(const KvPackArguments& arguments);

struct KvUnpackCall {
  KvUnpack work;
  DType dtype;
  Tensor slots, out;
};
KvUnpackCall prepare_kv_unpack(const KvUnpackArguments& arguments);

}  // namespace gossamer
