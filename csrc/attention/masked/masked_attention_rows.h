// The torch function of masked_attention_rows. Semantics: gossamer/ops/masked_attention_rows.py
#pragma once

#include <tuple>

#include "attention/masked/call.h"

namespace gossamer {

// (out, lse)
std::tuple<Tensor, Tensor> masked_attention_rows_cpu(const MaskedRowsArguments& arguments);

}  // namespace gossamer
