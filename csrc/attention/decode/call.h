// From tensors to DecodeAttention: the checks that all native backends of decode_attention share.
#pragma once

#include <optional>
#include <string>

#include "attention/decode/params.h"
#include "gossamer/torch/tensor.h"

namespace gossamer {

// The arguments of the schema in csrc/bindings.cpp.
struct DecodeArguments {
  const Tensor &q, &k_blocks, &v_blocks, &page_table, &seq_lens;
  const std::optional<Tensor>&dense_k, &dense_v, &dense_table;
  std::optional<int64_t> k_keep;
  const std::string &k_values, &k_scales;
  std::optional<int64_t> v_keep;
  const std::string &v_values, &v_scales, &dense_values;
  int64_t window, sink, page_size;
  double scale, softcap;
  int64_t sliding;
};

// A checked call; the tensors keep the memory alive that `work` points to.
struct DecodeCall {
  DecodeAttention work;
  DType dtype;  // of q and out
  Tensor q, page_table, dense_table, seq_lens, out, lse;
};
DecodeCall prepare_decode(const DecodeArguments& arguments);

}  // namespace gossamer
