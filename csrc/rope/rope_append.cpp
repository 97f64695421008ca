#include "rope/rope_append.h"

#include <vector>

#include "kv/check_slots.h"
#include "kv/kv_call.h"
#include "rope/rope.h"
#include "rope/rope_append.kernel.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "rope_append";

// Of a tensor with a row, or a matrix, of head_dim for each head of q and k; contiguous, kept alive by `kept`.
const void* per_head(const std::optional<Tensor>& t, const Tensor& qkv, int64_t dims, int64_t roped, const char* name,
                     std::vector<Tensor>& kept) {
  if (!t) return nullptr;
  check_matches(*t, qkv, kOp, name);
  bool fits = t->dim() == dims && t->size(0) == roped;
  for (int64_t d = 1; fits && d < dims; ++d) fits = t->size(d) == qkv.size(2);
  STD_TORCH_CHECK(fits, kOp, ": ", name, " must have head_dim channels for each head of q and k");
  kept.push_back(dense(*t));
  return kept.back().const_data_ptr();
}

DenseBlocks blocks_of(const char* name, const Tensor& blocks, const KvFormat& format, const Tensor& qkv) {
  check_blocks(kOp, name, blocks, format, qkv);
  check_apart(kOp, blocks);
  return {static_cast<uint8_t*>(blocks.mutable_data_ptr()), blocks.stride(0), blocks.stride(1)};
}

const char* values_of(DType dtype) { return dtype == DType::f32 ? "fp32" : dtype == DType::f16 ? "fp16" : "bf16"; }

// What is computed; `kept` is what it points to besides the arguments.
RopeAppend prepare(const RopeAppendArguments& a, std::vector<Tensor>& kept) {
  RopeAppend work{};
  RopeRows& rows = work.rows = prepare_rope(kOp, a.qkv, a.positions, a.cos, a.sin, false).work;
  const int64_t n = rows.head_dim;
  STD_TORCH_CHECK(rows.channel_stride == 1 && 2 * rows.pairs == n, kOp,
                  ": channels of qkv must be contiguous, all of them turned");
  const KvFormat format = parse_kv_format(kOp, n, std::nullopt, values_of(rows.dtype), "none");
  work.k = blocks_of("k_blocks", a.k_blocks, format, a.qkv);
  work.v = blocks_of("v_blocks", a.v_blocks, format, a.qkv);
  STD_TORCH_CHECK(same_sizes(a.k_blocks, a.v_blocks), kOp, ": v_blocks must have the shape of k_blocks");
  work.kv_heads = a.k_blocks.size(1);
  work.queries = rows.heads - 2 * work.kv_heads;
  check_plain(kOp, "slots", a.slots, ScalarType::Long, a.qkv);
  STD_TORCH_CHECK(a.slots.dim() == 1 && a.slots.size(0) == rows.tokens, kOp, ": slots must have one for each token");
  check_matches(a.q, a.qkv, kOp, "q");
  STD_TORCH_CHECK(work.queries >= 1 && a.q.dim() == 3 && a.q.size(0) == rows.tokens && a.q.size(1) == work.queries &&
                      a.q.size(2) == n && a.q.is_contiguous(),
                  kOp, ": q must be contiguous [tokens, query_heads, head_dim]");
  const int64_t roped = work.queries + work.kv_heads;
  rows.weight = per_head(a.norm, a.qkv, 2, roped, "norm", kept);
  rows.weight_head_stride = n, rows.eps = static_cast<float>(a.eps);
  STD_TORCH_CHECK(a.eps >= 0 && std::isfinite(a.eps), kOp, ": eps is ", a.eps, "; must be finite and >= 0");
  STD_TORCH_CHECK(a.matrices || !a.offsets, kOp, ": offsets are given without matrices");
  work.matrices = per_head(a.matrices, a.qkv, 3, roped, "matrices", kept);
  work.offsets = per_head(a.offsets, a.qkv, 2, roped, "offsets", kept);
  kept.push_back(dense(a.slots));
  work.slots = static_cast<const int64_t*>(kept.back().const_data_ptr());
  work.q = a.q.mutable_data_ptr();
  return work;
}

}  // namespace

void rope_append_cpu(const RopeAppendArguments& arguments) {
  std::vector<Tensor> kept;
  const RopeAppend work = prepare(arguments, kept);
  check_positions(kOp, work.rows);
  check_slots(kOp, work.slots, work.rows.tokens, arguments.k_blocks.size(0));
  const int64_t n = work.rows.head_dim, channels = work.matrices ? n * n / 8 + n : n;
  // About 4 us of work: less is not worth a thread.
  const auto kernel = GOSSAMER_CPU_KERNEL(rope_append);
  torch::stable::parallel_for(0, work.rows.tokens * work.rows.heads, 16384 / channels + 1,
                              [&](int64_t begin, int64_t end) { kernel(work, begin, end); });
}

}  // namespace gossamer
