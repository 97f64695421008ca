// The torch functions of rope, rope_inplace and rmsnorm_rope, and what they share. Semantics: gossamer/ops/rope.py,
// rope_inplace.py, rmsnorm_rope.py
#pragma once

#include <cmath>
#include <utility>

#include "gossamer/torch/rows.h"
#include "gossamer/torch/tensor.h"
#include "kv/kv_call.h"
#include "rope/rope.kernel.h"

namespace gossamer {

Tensor rope_cpu(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved);
Tensor rope_cuda(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved);
void rope_inplace_cpu(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved);
void rope_inplace_cuda(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin,
                       bool interleaved);
Tensor rmsnorm_rope_cpu(const Tensor& x, const Tensor& weight, const Tensor& positions, const Tensor& cos,
                        const Tensor& sin, double eps, bool interleaved);

// A checked call; the tensors keep the memory alive that `work` points to.
struct RopeCall {
  RopeRows work;
  Tensor x, weight, out;
};

inline void check_rope(const char* op, const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin) {
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

// Of tensors on the host, before anything is computed: positions are those of cos and sin.
void check_positions(const char* op, const RopeRows& work);

inline void point_to(RopeCall& call, const Tensor& x) {
  call.x = x;
  call.work.x = x.const_data_ptr();
  call.work.token_stride = x.stride(0);
  call.work.head_stride = x.stride(1);
  call.work.channel_stride = x.stride(2);
}

inline void write_to(RopeCall& call, const Tensor& out) {
  call.out = out;
  call.work.out = out.mutable_data_ptr();
  call.work.out_token_stride = out.stride(0);
  call.work.out_head_stride = out.stride(1);
}

// Without a place for the result.
inline RopeCall prepare_rope(const char* op, const Tensor& x, const Tensor& positions, const Tensor& cos,
                             const Tensor& sin, bool interleaved) {
  RopeCall call{};
  RopeRows& w = call.work;
  w.dtype = dtype_of(x, op, "x");
  check_rope(op, x, positions, cos, sin);
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
  return call;
}

// What is written to must lie apart: each dimension steps over all that the smaller steps reach.
inline void check_apart(const char* op, const Tensor& x) {
  if (x.numel() == 0) return;
  int64_t order[3] = {0, 1, 2};
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 2 - i; ++k) {
      if (x.stride(order[k]) > x.stride(order[k + 1])) std::swap(order[k], order[k + 1]);
    }
  }
  int64_t span = 1;
  bool apart = true;
  for (const int64_t d : order) {
    if (x.size(d) == 1) continue;
    apart = apart && x.stride(d) >= span;
    span += (x.size(d) - 1) * x.stride(d);
  }
  STD_TORCH_CHECK(apart, op, ": elements of x share memory; must lie apart");
}

constexpr int64_t kMaxNormedHead = 1024;  // channels of rmsnorm_rope

inline RopeCall prepare_rmsnorm_rope(const Tensor& x, const Tensor& weight, const Tensor& positions, const Tensor& cos,
                                     const Tensor& sin, double eps, bool interleaved) {
  const char* op = "rmsnorm_rope";
  RopeCall call = prepare_rope(op, x, positions, cos, sin, interleaved);
  check_matches(weight, x, op, "weight");
  const int64_t heads = x.size(1), head_dim = x.size(2);
  STD_TORCH_CHECK(head_dim <= kMaxNormedHead, op, ": head_dim is ", head_dim, "; must be at most ", kMaxNormedHead);
  const bool per_head = weight.dim() == 2 && weight.size(0) == heads && weight.size(1) == head_dim;
  STD_TORCH_CHECK(per_head || (weight.dim() == 1 && weight.size(0) == head_dim), op,
                  ": weight must have shape [head_dim] or [heads, head_dim]");
  STD_TORCH_CHECK(eps >= 0 && std::isfinite(eps), op, ": eps is ", eps, "; must be finite and >= 0");
  write_to(call, empty_contiguous(x, x.sizes()));
  call.weight = dense(weight);
  call.work.weight = call.weight.const_data_ptr();
  call.work.weight_head_stride = per_head ? head_dim : 0;
  call.work.eps = static_cast<float>(eps);
  return call;
}

}  // namespace gossamer
