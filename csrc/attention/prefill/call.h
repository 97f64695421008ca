// From tensors to numbers: the arguments of prefill_attention.
#pragma once

#include "gossamer/torch/arguments.h"

namespace gossamer {

// A new argument is added in three places: here, in the schema in csrc/bindings.cpp, and in PrefillArguments of
// gossamer/kernels/arguments.py, in the same order.
struct PrefillArguments : BoxedArguments {
  using BoxedArguments::BoxedArguments;
  Tensor q = tensor(), k = tensor(), v = tensor(), sequences = tensor(), tiles = tensor();
  std::optional<Tensor> far_k = maybe_tensor(), far_v = maybe_tensor();
  double scale = number();
  int64_t window = integer(), sink = integer(), sliding = integer();
};

}  // namespace gossamer
