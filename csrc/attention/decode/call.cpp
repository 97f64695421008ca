#include "attention/decode/call.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kv/kv_call.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "decode_attention";
constexpr int64_t kMaxQueryLength = 8, kMaxGroup = 16;
// Lengths are 32 bits wide, so that larger sizes mean the same as this one.
constexpr int64_t kManyBlocks = (int64_t{1} << 31) / kBlockTokens;

const int32_t* numbers(const Tensor& t) { return static_cast<const int32_t*>(t.const_data_ptr()); }

int blocks_of(const char* name, int64_t tokens, int64_t least) {
  STD_TORCH_CHECK(tokens >= least && tokens % kBlockTokens == 0, kOp, ": ", name, " is ", tokens,
                  "; must be a multiple of ", kBlockTokens);
  return static_cast<int>(std::min(tokens / kBlockTokens, kManyBlocks));
}

void check_table(const char* name, const Tensor& table, const Tensor& q) {
  check_plain(kOp, name, table, ScalarType::Int, q);
  STD_TORCH_CHECK(table.dim() == 2 && table.size(0) == q.size(0), kOp, ": ", name, " must have a line per sequence");
}

// Sets all but the table.
void set_pool(const char* name, const Tensor& k, const Tensor& v, const Tensor& q, int64_t kv_heads, DecodePool& pool) {
  check_blocks(kOp, name, k, pool.k, q);
  check_blocks(kOp, name, v, pool.v, q);
  STD_TORCH_CHECK(k.size(1) == kv_heads && v.size(1) == kv_heads, kOp, ": ", name, " must all have the same heads");
  pool.k_blocks = static_cast<const uint8_t*>(k.const_data_ptr());
  pool.v_blocks = static_cast<const uint8_t*>(v.const_data_ptr());
  pool.k_block_stride = k.stride(0);
  pool.k_head_stride = k.stride(1);
  pool.v_block_stride = v.stride(0);
  pool.v_head_stride = v.stride(1);
  pool.num_blocks = std::min(k.size(0), v.size(0));
}

// Not null where the table is empty, which would mean that there is no pool; nobody reads it then.
Tensor set_table(const Tensor& table, DecodePool& pool) {
  static const int32_t empty = 0;
  Tensor lines = dense(table);
  pool.table = lines.numel() == 0 ? &empty : numbers(lines);
  pool.table_stride = lines.size(1);
  return lines;
}

void set_heads(const Tensor& q, int64_t kv_heads, DecodeParams& w) {
  const int64_t heads = q.size(2);
  STD_TORCH_CHECK(kv_heads >= 1 && heads % kv_heads == 0 && heads >= kv_heads && heads <= kv_heads * kMaxGroup, kOp,
                  ": q has ", heads, " heads and the cache ", kv_heads, "; must be 1 to ", kMaxGroup, " times as many");
  w.sequences = static_cast<int>(q.size(0));
  w.q_len = static_cast<int>(q.size(1));
  w.kv_heads = checked_heads(kOp, kv_heads);
  w.group = static_cast<int>(heads / kv_heads);
  w.head_dim = static_cast<int>(q.size(3));
}

void set_window(const DecodeArguments& a, DecodeCall& call) {
  DecodeParams& w = call.work;
  STD_TORCH_CHECK(a.dense_values == "fp32" || a.dense_values == "fp16" || a.dense_values == "bf16", kOp,
                  ": the window's values are ", a.dense_values.c_str(), "; must be fp32, fp16 or bf16");
  w.window_blocks = blocks_of("window", a.window, 0);
  w.sink_blocks = blocks_of("sink", a.sink, 0);
  const bool given = a.dense_k.has_value();
  STD_TORCH_CHECK(a.dense_v.has_value() == given && a.dense_table.has_value() == given, kOp,
                  ": a part of the window is None");
  if (!given) return;
  w.dense.k = w.dense.v = parse_kv_format(kOp, w.head_dim, std::nullopt, a.dense_values, "none");
  set_pool("the window's blocks", *a.dense_k, *a.dense_v, a.q, w.kv_heads, w.dense);
  check_table("the window's table", *a.dense_table, a.q);
  call.dense_table = set_table(*a.dense_table, w.dense);
}

void set_numbers(const DecodeArguments& a, DecodeParams& w) {
  STD_TORCH_CHECK(std::isfinite(a.scale), kOp, ": scale is ", a.scale, "; must be finite");
  STD_TORCH_CHECK(std::isfinite(a.softcap) && a.softcap >= 0, kOp, ": softcap is ", a.softcap,
                  "; must be positive, or 0");
  STD_TORCH_CHECK(a.sliding >= 0, kOp, ": sliding is ", a.sliding, "; must be positive, or 0");
  w.scale = static_cast<float>(a.scale);
  w.softcap = static_cast<float>(a.softcap);
  w.sliding = static_cast<int>(std::min<int64_t>(a.sliding, std::numeric_limits<int>::max()));
}

void set_queries(const Tensor& q, DecodeCall& call) {
  DecodeParams& w = call.work;
  call.q = with_dense_rows(q);
  w.q = call.q.const_data_ptr();
  w.q_seq_stride = call.q.stride(0);
  w.q_token_stride = call.q.stride(1);
  w.q_head_stride = call.q.stride(2);
  call.out = empty_contiguous(q, q.sizes());
  call.lse = empty_contiguous(q, {q.size(0), q.size(1), q.size(2)}, aoti_torch_dtype_float32());
  w.out = call.out.mutable_data_ptr();
  w.lse = static_cast<float*>(call.lse.mutable_data_ptr());
}

}  // namespace

DecodeCall prepare_decode(const DecodeArguments& a) {
  DecodeCall call{};
  DecodeParams& w = call.work;
  call.dtype = dtype_of(a.q, kOp, "q");
  w.bf16 = call.dtype == DType::bf16;
  STD_TORCH_CHECK(a.q.dim() == 4, kOp, ": q must have 4 dimensions");
  STD_TORCH_CHECK(a.q.size(1) >= 1 && a.q.size(1) <= kMaxQueryLength, kOp, ": q_len is ", a.q.size(1),
                  "; must be 1 to ", kMaxQueryLength);
  w.main.k = parse_kv_format(kOp, a.q.size(3), a.k_keep, a.k_values, a.k_scales);
  w.main.v = parse_kv_format(kOp, a.q.size(3), a.v_keep, a.v_values, a.v_scales);
  STD_TORCH_CHECK(a.k_blocks.dim() == 3, kOp, ": k_blocks must have 3 dimensions");
  set_pool("k_blocks and v_blocks", a.k_blocks, a.v_blocks, a.q, a.k_blocks.size(1), w.main);
  set_heads(a.q, a.k_blocks.size(1), w);
  check_table("page_table", a.page_table, a.q);
  call.page_table = set_table(a.page_table, w.main);
  check_plain(kOp, "seq_lens", a.seq_lens, ScalarType::Int, a.q);
  STD_TORCH_CHECK(a.seq_lens.dim() == 1 && a.seq_lens.size(0) == a.q.size(0), kOp,
                  ": seq_lens must have one entry per sequence");
  call.seq_lens = dense(a.seq_lens);
  w.seq_lens = numbers(call.seq_lens);
  w.page_blocks = blocks_of("page_size", a.page_size, 1);
  set_window(a, call);
  const int64_t pages = w.dense.table ? std::min(w.main.table_stride, w.dense.table_stride) : w.main.table_stride;
  w.max_blocks = static_cast<int>(std::min(std::min(pages, kManyBlocks) * w.page_blocks, kManyBlocks));
  set_numbers(a, w);
  set_queries(a.q, call);
  return call;
}

}  // namespace gossamer
