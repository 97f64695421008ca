// What ops of x [..., k] times weight [n, k] check and prepare alike, on the CPU and on GPUs.
#pragma once

#include <optional>
#include <string>

#include "gossamer/torch/activation.h"
#include "gossamer/torch/rows.h"

namespace gossamer {

inline void check_weight(const Tensor& x, const Tensor& weight, const char* op, const char* name) {
  STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) >= 1, op, ": the last dimension of x must be at least 1");
  STD_TORCH_CHECK(weight.dim() == 2 && weight.size(1) == x.size(x.dim() - 1), op, ": ", name,
                  " must have shape [n, k], k the last dimension of x");
  STD_TORCH_CHECK(weight.size(1) == 1 || weight.stride(1) == 1, op, ": rows of ", name, " must be contiguous");
}

inline void check_bias(const std::optional<Tensor>& bias, const Tensor& like, int64_t n, const char* op,
                       const char* name) {
  if (!bias) return;
  check_matches(*bias, like, op, name);
  STD_TORCH_CHECK(bias->dim() == 1 && bias->size(0) == n, op, ": ", name, " must have one number for each column");
}

// Contiguous, or nothing.
inline std::optional<Tensor> dense(const std::optional<Tensor>& t) {
  if (!t || t->is_contiguous()) return t;
  return torch::stable::contiguous(*t);
}

inline const void* data_of(const std::optional<Tensor>& t) { return t ? t->const_data_ptr() : nullptr; }

// An uninitialised tensor [..., n] for x [..., k].
inline Tensor empty_result(const Tensor& x, int64_t n, int32_t dtype) {
  std::vector<int64_t> sizes(x.dim(), n);
  for (int64_t d = 0; d + 1 < x.dim(); ++d) sizes[d] = x.size(d);
  return empty_contiguous(x, sizes, dtype);
}
inline Tensor empty_result(const Tensor& x, int64_t n) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  return empty_result(x, n, dtype);
}

}  // namespace gossamer
