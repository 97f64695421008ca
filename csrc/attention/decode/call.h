// From tensors to DecodeParams: the checks that all native backends of decode_attention share.
#pragma once

#include "attention/decode/params.h"
#include "gossamer/torch/arguments.h"

namespace gossamer {

// A new argument is added in three places: here, in the schema in csrc/bindings.cpp, and in DecodeArguments of
// gossamer/kernels/arguments.py, in the same order.
struct DecodeArguments : BoxedArguments {
  using BoxedArguments::BoxedArguments;
  Tensor q = tensor(), k_blocks = tensor(), v_blocks = tensor(), page_table = tensor(), seq_lens = tensor();
  std::optional<Tensor> dense_k = maybe_tensor(), dense_v = maybe_tensor(), dense_table = maybe_tensor();
  std::optional<int64_t> k_keep = maybe_integer();
  std::string k_values = text(), k_scales = text();
  std::optional<int64_t> v_keep = maybe_integer();
  std::string v_values = text(), v_scales = text(), dense_values = text();
  int64_t window = integer(), sink = integer(), page_size = integer();
  double scale = number(), softcap = number();
  int64_t sliding = integer();
};

// A checked call; the tensors keep the memory alive that `work` points to.
struct DecodeCall {
  DecodeParams work;
  DType dtype;  // of q and out
  Tensor q, page_table, dense_table, seq_lens, out, lse;
};
DecodeCall prepare_decode(const DecodeArguments& arguments);

}  // namespace gossamer
