// The torch function of masked_attention_rows. Semantics: gossamer/ops/masked_attention_rows.py
#pragma once

#include <tuple>

#include "attention/masked/call.h"

namespace gossamer {

// (out, lse)
std::tuple<Tensor, Tensor> masked_attention_rows_cpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const Tensor& row_offsets, const Tensor& keys,
                                                     const std::optional<Tensor>& bias, int64_t batch, int64_t heads,
                                                     double scale, double softcap);

}  // namespace gossamer
