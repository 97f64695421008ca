// The torch function of rope_append. Semantics: gossamer/ops/rope_append.py
#pragma once

#include "gossamer/torch/arguments.h"

namespace gossamer {

struct RopeAppendArguments : BoxedArguments {
  using BoxedArguments::BoxedArguments;
  Tensor qkv = tensor(), positions = tensor(), cos = tensor(), sin = tensor();
  Tensor k_blocks = tensor(), v_blocks = tensor(), slots = tensor(), q = tensor();
  std::optional<Tensor> norm = maybe_tensor();
  double eps = number();
  std::optional<Tensor> matrices = maybe_tensor(), offsets = maybe_tensor();
};

void rope_append_cpu(const RopeAppendArguments& arguments);

}  // namespace gossamer
