// The torch functions of kv_unpack. Semantics: gossamer/ops/kv_unpack.py
#pragma once

#include "kv/kv_call.h"

namespace gossamer {

Tensor kv_unpack_cpu(const Tensor& blocks, const Tensor& slots, int64_t head_dim, std::optional<int64_t> keep,
                     const std::string& values, const std::string& scales, ScalarType dtype);
Tensor kv_unpack_cuda(const Tensor& blocks, const Tensor& slots, int64_t head_dim, std::optional<int64_t> keep,
                      const std::string& values, const std::string& scales, ScalarType dtype);

}  // namespace gossamer
