// From tensors to MaskedAttention: the checks that all native backends of masked_attention share.
#pragma once

#include <optional>

#include "attention/masked/params.h"
#include "gossamer/torch/tensor.h"

namespace gossamer {

// The arguments of the schema in csrc/bindings.cpp.
struct MaskedArguments {
  const Tensor &q, &k, &v, &offsets, &tiles, &bits, &order;
  const std::optional<Tensor>&work, &bias;
  double scale, softcap;
  bool with_lse;
};

// A checked call; numbers inside of the map are not looked at.
struct MaskedCall {
  MaskedAttention work;
  DType dtype;      // of q, k, v and out
  Tensor out, lse;  // lse is undefined where nobody wants it
};
MaskedCall prepare_masked(const MaskedArguments& arguments);

// The arguments of masked_attention_rows.
struct MaskedRowsArguments {
  const Tensor &q, &k, &v, &row_offsets, &keys;
  const std::optional<Tensor>& bias;
  int64_t batch, heads;
  double scale, softcap;
};
// The same for lists of keys, of which `map` has no more than batch and heads.
MaskedCall prepare_masked_rows(const MaskedRowsArguments& arguments);

}  // namespace gossamer
