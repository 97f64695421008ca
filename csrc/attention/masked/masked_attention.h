// The torch functions of masked_attention. Semantics: gossamer/ops/masked_attention.py
#pragma once

#include <tuple>

#include "attention/masked/call.h"

namespace gossamer {

// (out, lse); lse is undefined, which Python sees as None, without with_lse.
std::tuple<Tensor, Tensor> masked_attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                                const Tensor& offsets, const Tensor& tiles, const Tensor& bits,
                                                const Tensor& order, const std::optional<Tensor>& work,
                                                const std::optional<Tensor>& bias, double scale, double softcap,
                                                bool with_lse);
std::tuple<Tensor, Tensor> masked_attention_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const Tensor& offsets, const Tensor& tiles, const Tensor& bits,
                                                 const Tensor& order, const std::optional<Tensor>& work,
                                                 const std::optional<Tensor>& bias, double scale, double softcap,
                                                 bool with_lse);

}  // namespace gossamer
