// The torch functions of masked_attention. Semantics: gossamer/ops/masked_attention.py
#pragma once

#include <tuple>

#include "attention/masked/call.h"

namespace gossamer {

// (out, lse); lse is undefined, which Python sees as None, without with_lse.
std::tuple<Tensor, Tensor> masked_attention_cpu(const MaskedArguments& arguments);
std::tuple<Tensor, Tensor> masked_attention_cuda(const MaskedArguments& arguments);

}  // namespace gossamer
