// Checks and small helpers on torch::stable::Tensor, used by the torch functions of every op.
//
// These checks come first: every call meets them, also torch.ops.gossamer.<op> without the Python
// wrapper. What they refuse the wrapper explains in more words (gossamer/ops/registry.py).
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <vector>

#include "gossamer/common.h"

namespace gossamer {

using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The type of the elements; an error for other types and for a tensor whose storage was freed.
inline DType dtype_of(const Tensor& t, const char* op, const char* name) {
  STD_TORCH_CHECK(t.numel() == 0 || t.const_data_ptr() != nullptr, op, ": ", name, " has no memory");
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return DType::f32;
    case ScalarType::Half:
      return DType::f16;
    case ScalarType::BFloat16:
      return DType::bf16;
    default:
      break;
  }
  STD_TORCH_CHECK(false, op, ": ", name, " must be float32, float16 or bfloat16");
  return DType::f32;
}

// `t` must live where `like` lives and hold the same type of element.
inline void check_matches(const Tensor& t, const Tensor& like, const char* op, const char* name) {
  dtype_of(t, op, name);
  STD_TORCH_CHECK(t.scalar_type() == like.scalar_type(), op, ": ", name, " must have the dtype of the first argument");
  STD_TORCH_CHECK(t.device() == like.device(), op, ": ", name, " must be on the device of the first argument");
}

// An uninitialised contiguous tensor on the device of `like`; `dtype` is the C shim's. Straight through
// the shim: torch::stable::new_empty looks its op up by name in every call, which costs 0.8 us.
inline Tensor empty_contiguous(const Tensor& like, IntHeaderOnlyArrayRef sizes, int32_t dtype) {
  const int64_t dims = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (int64_t d = dims - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  int32_t device_type = 0, device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle = nullptr;
  const AOTITorchError failed =
      aoti_torch_empty_strided(dims, sizes.data(), strides.data(), dtype, device_type, device_index, &handle);
  STD_TORCH_CHECK(!failed, "out of memory: no room for a tensor of ", stride, " elements");
  return Tensor(handle);
}

// The same with the dtype of `like`.
inline Tensor empty_contiguous(const Tensor& like, IntHeaderOnlyArrayRef sizes) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return empty_contiguous(like, sizes, dtype);
}

// A contiguous copy of `t`, expanded to `sizes`.
inline Tensor expanded_copy(const Tensor& t, IntHeaderOnlyArrayRef sizes) {
  Tensor copy = empty_contiguous(t, sizes);
  return torch::stable::copy_(copy, t);
}

}  // namespace gossamer
