// The torch functions of masked_attention. Semantics: gossamer/ops/masked_attention.py
#pragma once

#include <tuple>

#include "attention/masked_call.h"

namespace gossamer {

// (out, lse)
std::tuple<Tensor, Tensor> masked_attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const Tensor& offsets, const Tensor& columns, const Tensor& kinds,
                                                const Tensor& bits, const Tensor& order,
                                                const std::optional<Tensor>& work, const std::optional<Tensor>& bias,
                                                int64_t batch, int64_t heads, int64_t tile_q, int64_t tile_k,
                                                double scale, double softcap);
std::tuple<Tensor, Tensor> masked_attention_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const Tensor& offsets, const Tensor& columns, const Tensor& kinds,
                                                 const Tensor& bits, const Tensor& order,
                                                 const std::optional<Tensor>& work, const std::optional<Tensor>& bias,
                                                 int64_t batch, int64_t heads, int64_t tile_q, int64_t tile_k,
                                                 double scale, double softcap);

}  // namespace gossamer
