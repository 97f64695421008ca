#include "kv/kv_call.h"

#include <algorithm>
#include <cstdio>

#include "gossamer/torch/rows.h"

namespace gossamer {
namespace {

constexpr int64_t kAlignment = 16;  // bytes: the widest load of a GPU

struct ValueType {
  const char* name;
  Values values;
  int bits;
};
constexpr ValueType kValueTypes[] = {
    {"fp32", Values::f32, 32}, {"fp16", Values::f16, 16}, {"bf16", Values::bf16, 16}, {"fp8_e4m3", Values::fp8, 8},
    {"int8", Values::i8, 8},   {"int4", Values::i4, 4},   {"int3", Values::i3, 3},    {"int2", Values::i2, 2}};

struct ScaleKind {
  const char* name;
  Scales scales;
};
constexpr ScaleKind kScaleKinds[] = {
    {"none", Scales::none}, {"row", Scales::row}, {"channel", Scales::channel}, {"group", Scales::group}};

// The groups of a profile like 8x16+4x40+2x8.
void parse_profile(const char* op, const std::string& text, KvFormat& f) {
  int groups = 0, most = 0;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('+', at), text.size());
    int bits = -1, channels = 0, length = 0;
    const std::string run = text.substr(at, end - at);
    STD_TORCH_CHECK(
        std::sscanf(run.c_str(), "%4dx%4d%n", &bits, &channels, &length) == 2 && length == static_cast<int>(run.size()),
        op, ": bits are ", text.c_str());
    STD_TORCH_CHECK(bits == 8 || bits == 4 || bits == 3 || bits == 2 || bits == 0, op, ": ", run.c_str(), " has ", bits,
                    " bits");
    STD_TORCH_CHECK(channels > 0 && channels % kChunk == 0 && groups + channels / kChunk <= kMaxGroups, op, ": ",
                    run.c_str(), " has ", channels, " channels");
    for (int i = 0; i < channels / kChunk; ++i) f.group_bits[groups++] = static_cast<uint8_t>(bits);
    most = std::max(most, bits);
    at = end + 1;
  }
  STD_TORCH_CHECK(most > 0 && groups * kChunk == f.head_dim, op, ": bits ", text.c_str(), " are of ", groups * kChunk,
                  " channels; must add up to ", f.head_dim);
  f.bits = most;
}

// Blocks that are written must not share memory.
void check_apart(const char* op, const Tensor& blocks) {
  const int64_t sizes[2] = {blocks.size(0), blocks.size(1)}, strides[2] = {blocks.stride(0), blocks.stride(1)};
  const int inner = strides[0] < strides[1] ? 0 : 1, outer = 1 - inner;
  const bool inside = sizes[inner] <= 1 || strides[inner] >= blocks.size(2);
  const int64_t span = sizes[inner] <= 1 ? blocks.size(2) : strides[inner] * sizes[inner];
  STD_TORCH_CHECK(blocks.numel() == 0 || (inside && (sizes[outer] <= 1 || strides[outer] >= span)), op,
                  ": blocks share memory");
}

void set_ranking(const char* op, const Tensor& x, const std::optional<Tensor>& weights,
                 const std::optional<Tensor>& scores, KvPackCall& call) {
  KvPack& w = call.work;
  STD_TORCH_CHECK(!(weights && scores), op, ": weights and scores exclude each other");
  const bool fitted = w.format.values == Values::profile && w.format.scales == Scales::row;
  STD_TORCH_CHECK(w.format.sparse || (!scores && (!weights || fitted)), op, ": this format takes no weights or scores");
  if (weights) {
    check_plain(op, "weights", *weights, ScalarType::Float, x);
    STD_TORCH_CHECK(weights->dim() == 2 && weights->size(0) == x.size(1) && weights->size(1) == x.size(2), op,
                    ": weights must be [heads, head_dim]");
    call.weights = with_dense_rows(dense(*weights));  // contiguous, and aligned for a GPU
    w.weights = static_cast<const float*>(call.weights.const_data_ptr());
  }
  if (scores) {
    check_plain(op, "scores", *scores, ScalarType::Float, x);
    STD_TORCH_CHECK(same_sizes(*scores, x), op, ": scores must have the shape of x");
    call.scores = with_dense_rows(*scores);
    w.scores = static_cast<const float*>(call.scores.const_data_ptr());
    w.score_row_stride = call.scores.stride(0);
    w.score_head_stride = call.scores.stride(1);
  }
}

int32_t shim_dtype(const char* op, ScalarType dtype) {
  if (dtype == ScalarType::Float) return aoti_torch_dtype_float32();
  if (dtype == ScalarType::Half) return aoti_torch_dtype_float16();
  STD_TORCH_CHECK(dtype == ScalarType::BFloat16, op, ": dtype must be float32, float16 or bfloat16");
  return aoti_torch_dtype_bfloat16();
}

}  // namespace

void check_plain(const char* op, const char* name, const Tensor& t, ScalarType type, const Tensor& like) {
  STD_TORCH_CHECK(t.scalar_type() == type, op, ": ", name, " has the wrong dtype");
  STD_TORCH_CHECK(t.device() == like.device(), op, ": ", name, " must be on the device of the first argument");
  STD_TORCH_CHECK(t.numel() == 0 || t.const_data_ptr() != nullptr, op, ": ", name, " has no memory");
}

void check_blocks(const char* op, const char* name, const Tensor& blocks, const KvFormat& format, const Tensor& like) {
  check_plain(op, name, blocks, ScalarType::Byte, like);
  STD_TORCH_CHECK(blocks.dim() == 3 && blocks.size(2) == format.block_bytes, op, ": ", name,
                  " must be [blocks, heads, ", format.block_bytes, "]");
  STD_TORCH_CHECK(blocks.stride(2) == 1 && blocks.stride(0) % kAlignment == 0 && blocks.stride(1) % kAlignment == 0 &&
                      reinterpret_cast<uintptr_t>(blocks.const_data_ptr()) % kAlignment == 0,
                  op, ": ", name, " must be aligned to ", kAlignment, " bytes and contiguous in the last dimension");
}

// Offsets within a row of heads are computed in 32 bits.
int checked_heads(const char* op, int64_t heads) {
  STD_TORCH_CHECK(heads < (int64_t{1} << 31) / kMaxHeadDim, op, ": too many heads: ", heads);
  return static_cast<int>(heads);
}

Tensor dense(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

Tensor with_dense_rows(const Tensor& t) {
  const int64_t last = t.dim() - 1;
  const int64_t lanes = kAlignment / t.element_size();
  bool suits = t.stride(last) == 1;
  if (!t.is_cpu()) {
    suits = suits && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % kAlignment == 0;
    for (int64_t d = 0; d < last; ++d) suits = suits && t.stride(d) % lanes == 0;
  }
  return suits || t.numel() == 0 ? t : expanded_copy(t, t.sizes());
}

KvFormat parse_kv_format(const char* op, int64_t head_dim, std::optional<int64_t> keep, const std::string& values,
                         const std::string& scales) {
  STD_TORCH_CHECK(head_dim % kChunk == 0 && head_dim >= kChunk && head_dim <= kMaxHeadDim, op, ": head_dim is ",
                  head_dim, "; must be a multiple of ", kChunk, " up to ", kMaxHeadDim);
  STD_TORCH_CHECK(!keep || (*keep >= 1 && *keep <= head_dim), op, ": keep is ", keep.value_or(0), "; must be 1 to ",
                  head_dim);
  const ValueType profile{"profile", Values::profile, 0};
  const bool has_profile = values.find('x') != std::string::npos;
  const ValueType* type = has_profile ? &profile : nullptr;
  for (const ValueType& t : kValueTypes) type = values == t.name ? &t : type;
  const ScaleKind* kind = nullptr;
  for (const ScaleKind& k : kScaleKinds) kind = scales == k.name ? &k : kind;
  STD_TORCH_CHECK(type != nullptr, op, ": unknown values ", values.c_str());
  STD_TORCH_CHECK(kind != nullptr, op, ": unknown scales ", scales.c_str());
  const Scales s = kind->scales;
  STD_TORCH_CHECK(!has_profile || !keep, op, ": sparse rows have one type of value");
  const bool fits = has_profile                   ? s == Scales::none || s == Scales::row
                    : type->bits >= 16            ? s == Scales::none
                    : type->values == Values::fp8 ? s == Scales::row
                                                  : s != Scales::none && (s != Scales::group || !keep);
  STD_TORCH_CHECK(fits, op, ": values ", values.c_str(), " do not go with scales ", scales.c_str());
  STD_TORCH_CHECK(s != Scales::group || head_dim % kGroup == 0, op, ": head_dim must be a multiple of ", kGroup);

  KvFormat f{};
  f.values = type->values;
  f.scales = s;
  f.head_dim = static_cast<int>(head_dim);
  f.sparse = keep.has_value();
  f.keep = static_cast<int>(keep.value_or(head_dim));
  f.bits = type->bits;
  f.chunks = (f.keep + kChunk - 1) / kChunk;
  f.values_at = f.sparse ? kBlockTokens * f.head_dim / 8 : 0;
  if (has_profile) {
    parse_profile(op, values, f);
  } else {
    std::fill(f.group_bits, f.group_bits + f.head_dim / kChunk, static_cast<uint8_t>(f.bits));
  }
  if (!f.sparse && f.bits <= 8) set_fields(f);
  f.scales_at = f.values_at + kBlockTokens * (f.has_codes() ? f.row_bytes : f.chunks * f.bits);
  const int scale_bytes = s == Scales::row       ? 2 * kBlockTokens
                          : s == Scales::channel ? 4 * f.head_dim
                          : s == Scales::group   ? 4 * kBlockTokens * f.head_dim / kGroup
                                                 : 0;
  f.block_bytes = f.scales_at + scale_bytes;
  return f;
}

KvPackCall prepare_kv_pack(const KvPackArguments& a) {
  KvPackCall call{};
  const char* op = call.op = a.appends ? "kv_append" : "kv_pack";
  const Tensor &x = a.x, &blocks = a.blocks, &slots = a.slots;
  call.dtype = dtype_of(x, op, "x");
  STD_TORCH_CHECK(x.dim() == 3, op, ": x must have 3 dimensions");
  KvPack& w = call.work;
  w.format = parse_kv_format(op, x.size(2), a.keep, a.values, a.scales);
  w.fields = fields_of(w.format);
  check_blocks(op, "blocks", blocks, w.format, x);
  STD_TORCH_CHECK(blocks.size(1) == x.size(1), op, ": blocks must have the heads of x");
  check_apart(op, blocks);
  check_plain(op, "slots", slots, ScalarType::Long, x);
  STD_TORCH_CHECK(slots.dim() == 1 && slots.size(0) == x.size(0), op, ": slots must have one entry per row of x");
  const bool whole = w.format.scales == Scales::channel;
  STD_TORCH_CHECK(!whole || (!a.table && x.size(0) % kBlockTokens == 0), op, ": scales 'channel' need whole blocks");
  w.rows = x.size(0);
  w.heads = checked_heads(op, x.size(1));
  call.x = with_dense_rows(x);
  w.x = call.x.const_data_ptr();
  w.x_row_stride = call.x.stride(0);
  w.x_head_stride = call.x.stride(1);
  w.blocks = static_cast<uint8_t*>(blocks.mutable_data_ptr());
  w.num_blocks = blocks.size(0);
  w.block_stride = blocks.stride(0);
  w.block_head_stride = blocks.stride(1);
  call.slots = dense(slots);
  w.slots = static_cast<const int64_t*>(call.slots.const_data_ptr());
  if (a.table) {
    const Tensor& table = *a.table;
    check_plain(op, "block_table", table, ScalarType::Int, x);
    STD_TORCH_CHECK(table.dim() == 2 && table.size(0) == x.size(0), op, ": block_table must have a line per row");
    call.table = dense(table);
    w.table = static_cast<const int32_t*>(call.table.const_data_ptr());
    w.table_stride = w.table_width = table.size(1);
  }
  set_ranking(op, x, a.weights, a.scores, call);
  return call;
}

KvUnpackCall prepare_kv_unpack(const KvUnpackArguments& a) {
  const Tensor &blocks = a.blocks, &slots = a.slots;
  const char* op = "kv_unpack";
  KvUnpackCall call{};
  KvUnpack& w = call.work;
  w.format = parse_kv_format(op, a.head_dim, a.keep, a.values, a.scales);
  w.fields = fields_of(w.format);
  check_blocks(op, "blocks", blocks, w.format, blocks);
  check_plain(op, "slots", slots, ScalarType::Long, blocks);
  STD_TORCH_CHECK(slots.dim() == 1, op, ": slots must have 1 dimension");
  w.rows = slots.size(0);
  w.heads = checked_heads(op, blocks.size(1));
  w.blocks = static_cast<const uint8_t*>(blocks.const_data_ptr());
  w.num_blocks = blocks.size(0);
  w.block_stride = blocks.stride(0);
  w.block_head_stride = blocks.stride(1);
  call.slots = dense(slots);
  w.slots = static_cast<const int64_t*>(call.slots.const_data_ptr());
  call.out = empty_contiguous(blocks, {w.rows, w.heads, a.head_dim}, shim_dtype(op, a.dtype));
  call.dtype = dtype_of(call.out, op, "the result");
  w.out = call.out.mutable_data_ptr();
  return call;
}

}  // namespace gossamer
