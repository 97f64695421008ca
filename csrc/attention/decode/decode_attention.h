// The torch functions of decode_attention. Semantics: gossamer/ops/decode_attention.py
#pragma once

#include <tuple>

#include "attention/decode/call.h"

namespace gossamer {

// (out, lse)
std::tuple<Tensor, Tensor> decode_attention_cpu(const DecodeArguments& arguments);
std::tuple<Tensor, Tensor> decode_attention_cuda(const DecodeArguments& arguments);

}  // namespace gossamer
