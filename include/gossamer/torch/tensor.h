// Checks and small helpers on torch::stable::Tensor, used by the torch functions of every op.
//
// Python's wrappers have already refused bad arguments with a friendlier message; these checks keep
// memory safe when torch.ops.gossamer.<op> is called directly.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <string>

#include "gossamer/common.h"

namespace gossamer {

using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline DType dtype_of(const Tensor& t, const char* op, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return DType::f32;
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    default: break;
  }
  STD_TORCH_CHECK(false, op, ": ", name, " must be float32, float16 or bfloat16");
  return DType::f32;
}

// `t` must live where `like` lives and hold the same type of element.
inline void check_matches(const Tensor& t, const Tensor& like, const char* op, const char* name) {
  STD_TORCH_CHECK(t.scalar_type() == like.scalar_type(), op, ": ", name, " must have the dtype of the first argument");
  STD_TORCH_CHECK(t.device() == like.device(), op, ": ", name, " must be on the device of the first argument");
}

inline Tensor empty_contiguous(const Tensor& like, IntHeaderOnlyArrayRef sizes) {
  return torch::stable::new_empty(like, sizes);
}

// A contiguous copy of `t`, expanded to `sizes`.
inline Tensor expanded_copy(const Tensor& t, IntHeaderOnlyArrayRef sizes) {
  Tensor copy = empty_contiguous(t, sizes);
  return torch::stable::copy_(copy, t);
}

}  // namespace gossamer
