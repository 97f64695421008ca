// The torch functions of kv_pack and kv_append. Semantics: gossamer/ops/kv_pack.py, kv_append.py
#pragma once

#include "kv/kv_call.h"

namespace gossamer {

void kv_pack_cpu(const Tensor& x, const Tensor& blocks, const Tensor& slots, std::optional<int64_t> keep,
                 const std::string& values, const std::string& scales, std::optional<Tensor> weights,
                 std::optional<Tensor> scores);
void kv_pack_cuda(const Tensor& x, const Tensor& blocks, const Tensor& slots, std::optional<int64_t> keep,
                  const std::string& values, const std::string& scales, std::optional<Tensor> weights,
                  std::optional<Tensor> scores);

void kv_append_cpu(const Tensor& x, const Tensor& blocks, const Tensor& block_table, const Tensor& positions,
                   std::optional<int64_t> keep, const std::string& values, const std::string& scales,
                   std::optional<Tensor> weights, std::optional<Tensor> scores);
void kv_append_cuda(const Tensor& x, const Tensor& blocks, const Tensor& block_table, const Tensor& positions,
                    std::optional<int64_t> keep, const std::string& values, const std::string& scales,
                    std::optional<Tensor> weights, std::optional<Tensor> scores);

}  // namespace gossamer
