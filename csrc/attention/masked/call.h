// From tensors to MaskedParams: the checks that all native backends of masked_attention share.
#pragma once

#include "attention/masked/params.h"
#include "gossamer/torch/arguments.h"

namespace gossamer {

// A new argument is added in three places: here, in the schema in csrc/bindings.cpp, and in MaskedArguments of
// gossamer/kernels/arguments.py, in the same order.
struct MaskedArguments : BoxedArguments {
  using BoxedArguments::BoxedArguments;
  Tensor q = tensor(), k = tensor(), v = tensor();
  Tensor offsets = tensor(), tiles = tensor(), bits = tensor(), order = tensor();
  std::optional<Tensor> work = maybe_tensor(), bias = maybe_tensor();
  double scale = number(), softcap = number();
  bool with_lse = flag();
};

// A checked call; numbers inside the map are not looked at.
struct MaskedCall {
  MaskedParams work;
  DType dtype;      // of q, k, v and out
  Tensor out, lse;  // lse is undefined where nobody wants it
};
MaskedCall prepare_masked(const MaskedArguments& arguments);

// The arguments of masked_attention_rows, as above.
struct MaskedRowsArguments : BoxedArguments {
  using BoxedArguments::BoxedArguments;
  Tensor q = tensor(), k = tensor(), v = tensor(), row_offsets = tensor(), keys = tensor();
  std::optional<Tensor> bias = maybe_tensor();
  int64_t batch = integer(), heads = integer();
  double scale = number(), softcap = number();
};
// The same for lists of keys, of which `map` has no more than batch and heads.
MaskedCall prepare_masked_rows(const MaskedRowsArguments& arguments);

}  // namespace gossamer
