// The torch functions of decode_attention. Semantics: gossamer/ops/decode_attention.py
#pragma once

#include <tuple>

#include "attention/decode/call.h"

namespace gossamer {

// (out, lse)
std::tuple<Tensor, Tensor> decode_attention_cpu(
    const Tensor& q, const Tensor& k_blocks, const Tensor& v_blocks, const Tensor& page_table, const Tensor& seq_lens,
    const std::optional<Tensor>& dense_k, const std::optional<Tensor>& dense_v,
    const std::optional<Tensor>& dense_table, std::optional<int64_t> k_keep, const std::string& k_values,
    const std::string& k_scales, std::optional<int64_t> v_keep, const std::string& v_values,
    const std::string& v_scales, const std::string& dense_values, int64_t window, int64_t sink, int64_t page_size,
    double scale, double softcap, int64_t sliding);
std::tuple<Tensor, Tensor> decode_attention_cuda(
    const Tensor& q, const Tensor& k_blocks, const Tensor& v_blocks, const Tensor& page_table, const Tensor& seq_lens,
    const std::optional<Tensor>& dense_k, const std::optional<Tensor>& dense_v,
    const std::optional<Tensor>& dense_table, std::optional<int64_t> k_keep, const std::string& k_values,
    const std::string& k_scales, std::optional<int64_t> v_keep, const std::string& v_values,
    const std::string& v_scales, const std::string& dense_values, int64_t window, int64_t sink, int64_t page_size,
    double scale, double softcap, int64_t sliding);

}  // namespace gossamer
