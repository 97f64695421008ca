// The torch functions of rope and what they share. Semantics: gossamer/ops/rope.py
#pragma once

#include "gossamer/torch/rows.h"
#include "gossamer/torch/tensor.h"
#include "kv/kv_call.h"
#include "rope/rope.kernel.h"

namespace gossamer {

Tensor rope_cpu(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved);
Tensor rope_cuda(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved);

// A checked call; the tensors keep the memory alive that `work` points to.
struct RopeCall {
  Rope work;
  Tensor x, out;
};

inline void check_rope(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin) {
  const char* op = "rope";
  STD_TORCH_CHECK(x.dim() == 3, op, ": x must have 3 dimensions");
  check_plain(op, "positions", positions, ScalarType::Long, x);
  check_plain(op, "cos", cos, ScalarType::Float, x);
  check_plain(op, "sin", sin, ScalarType::Float, x);
  STD_TORCH_CHECK(positions.dim() == 1 && positions.size(0) == x.size(0), op, ": positions must have shape [tokens]");
  STD_TORCH_CHECK(cos.dim() == 2 && cos.size(0) >= 1 && cos.size(1) >= 1 && cos.size(1) <= x.size(2) / 2, op,
                  ": cos must have shape [max_positions, 1 to head_dim / 2]");
  STD_TORCH_CHECK(same_sizes(cos, sin), op, ": sin must have the shape of cos");
  STD_TORCH_CHECK(cos.is_contiguous() && sin.is_contiguous(), op, ": cos and sin must be contiguous");
}

inline void point_to(RopeCall& call, const Tensor& x) {
  call.x = x;
  call.work.x = x.const_data_ptr();
  call.work.token_stride = x.stride(0);
  call.work.head_stride = x.stride(1);
  call.work.channel_stride = x.stride(2);
}

inline RopeCall prepare_rope(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin,
                             bool interleaved) {
  RopeCall call{};
  Rope& w = call.work;
  w.dtype = dtype_of(x, "rope", "x");
  check_rope(x, positions, cos, sin);
  w.interleaved = interleaved;
  w.tokens = x.size(0);
  w.heads = x.size(1);
  w.head_dim = x.size(2);
  w.max_positions = cos.size(0);
  w.pairs = cos.size(1);
  point_to(call, x);
  w.positions = static_cast<const int64_t*>(positions.const_data_ptr());
  w.position_stride = positions.stride(0);
  w.cos = static_cast<const float*>(cos.const_data_ptr());
  w.sin = static_cast<const float*>(sin.const_data_ptr());
  call.out = empty_contiguous(x, x.sizes());
  w.out = call.out.mutable_data_ptr();
  return call;
}

}  // namespace gossamer
