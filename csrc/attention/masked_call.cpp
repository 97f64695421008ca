#include "attention/masked_call.h"

#include <cmath>
#include <limits>

namespace gossamer {
namespace {

constexpr const char* kOp = "masked_attention";  // with tiles or lists of keys

MaskedHeads heads_of(const char* name, const Tensor& t) {
  STD_TORCH_CHECK(t.stride(3) == 1, kOp, ": the last stride of ", name, " is ", t.stride(3), "; must be 1");
  return {t.const_data_ptr(), t.stride(0), t.stride(1), t.stride(2)};
}

int checked_length(const char* name, int64_t length) {
  STD_TORCH_CHECK(length <= std::numeric_limits<int>::max() - kMaxMaskedTile, kOp, ": ", name, " is too long");
  return static_cast<int>(length);
}

template <class Arguments>
void set_heads(const Arguments& a, MaskedAttention& w) {
  check_matches(a.k, a.q, kOp, "k");
  check_matches(a.v, a.q, kOp, "v");
  STD_TORCH_CHECK(a.q.dim() == 4, kOp, ": q must have 4 dimensions");
  const int64_t head_dim = a.q.size(3);
  STD_TORCH_CHECK(head_dim >= 32 && head_dim <= kMaxMaskedHeadDim && head_dim % 8 == 0, kOp, ": head_dim is ", head_dim,
                  "; must be a multiple of 8, 32 to ", kMaxMaskedHeadDim);
  STD_TORCH_CHECK(a.k.dim() == 4 && a.k.size(0) == a.q.size(0) && a.k.size(3) == head_dim, kOp,
                  ": k must have the batch and head_dim of q");
  STD_TORCH_CHECK(a.v.dim() == 4, kOp, ": v must have 4 dimensions");
  for (int d = 0; d < 4; ++d) STD_TORCH_CHECK(a.v.size(d) == a.k.size(d), kOp, ": v must have the shape of k");
  STD_TORCH_CHECK(a.q.size(1) >= 1 && a.k.size(1) >= 1 && a.q.size(1) % a.k.size(1) == 0, kOp, ": q has ", a.q.size(1),
                  " heads and k ", a.k.size(1), "; must be a multiple");
  w.batch = checked_length("the batch", a.q.size(0));
  w.heads = checked_length("the list of heads", a.q.size(1));
  w.kv_heads = static_cast<int>(a.k.size(1));
  w.q_len = checked_length("q", a.q.size(2));
  w.kv_len = checked_length("k", a.k.size(2));
  w.head_dim = static_cast<int>(head_dim);
  w.q = heads_of("q", a.q);
  w.k = heads_of("k", a.k);
  w.v = heads_of("v", a.v);
}

const int32_t* numbers(const char* name, const Tensor& t, const Tensor& like) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Int, kOp, ": ", name, " must be int32");
  STD_TORCH_CHECK(t.device() == like.device(), kOp, ": ", name, " must be on the device of q");
  STD_TORCH_CHECK(t.is_contiguous(), kOp, ": ", name, " must be contiguous");
  STD_TORCH_CHECK(t.numel() == 0 || t.const_data_ptr() != nullptr, kOp, ": ", name, " has no memory");
  return static_cast<const int32_t*>(t.const_data_ptr());
}

void check_list(const char* name, const Tensor& t, int64_t size) {
  STD_TORCH_CHECK(t.dim() == 1 && t.size(0) == size, kOp, ": ", name, " must have shape [", size, "]");
}

int checked_tile(const char* name, int64_t size, int64_t least) {
  STD_TORCH_CHECK(size >= least && size <= kMaxMaskedTile && (size & (size - 1)) == 0, kOp, ": ", name, " is ", size,
                  "; must be a power of two, ", least, " to ", kMaxMaskedTile);
  return static_cast<int>(size);
}

template <class Arguments>
void set_groups(const Arguments& a, const MaskedAttention& w, MaskedMap& map) {
  STD_TORCH_CHECK(a.batch == 1 || a.batch == w.batch, kOp, ": batch is ", a.batch, "; must be 1 or ", w.batch);
  STD_TORCH_CHECK(a.heads == 1 || a.heads == w.heads, kOp, ": heads is ", a.heads, "; must be 1 or ", w.heads);
  map.batch = static_cast<int>(a.batch);
  map.heads = static_cast<int>(a.heads);
}

void set_map(const MaskedArguments& a, const MaskedAttention& w, MaskedMap& map) {
  map.tile_q = checked_tile("tile_q", a.tile_q, 16);
  map.tile_k = checked_tile("tile_k", a.tile_k, kWordKeys);
  map.rows = (w.q_len + map.tile_q - 1) / map.tile_q;
  const int64_t count = a.batch * a.heads * map.rows;
  STD_TORCH_CHECK(count < std::numeric_limits<int32_t>::max(), kOp, ": the map has ", count, " rows; too many");
  map.offsets = numbers("offsets", a.offsets, a.q);
  map.columns = numbers("columns", a.columns, a.q);
  map.kinds = numbers("kinds", a.kinds, a.q);
  map.bits = numbers("bits", a.bits, a.q);
  map.order = numbers("order", a.order, a.q);
  check_list("offsets", a.offsets, count + 1);
  STD_TORCH_CHECK(a.columns.dim() == 1, kOp, ": columns must have 1 dimension");
  map.tiles = a.columns.size(0);
  check_list("kinds", a.kinds, map.tiles);
  STD_TORCH_CHECK(a.bits.dim() == 3 && a.bits.size(0) >= 1 && a.bits.size(1) == map.tile_q &&
                      a.bits.size(2) == map.tile_k / kWordKeys,
                  kOp, ": bits must have shape [patterns, ", map.tile_q, ", ", map.tile_k / kWordKeys, "]");
  map.patterns = a.bits.size(0);
  check_list("order", a.order, count);
  if (!a.work) return;
  numbers("work", *a.work, a.q);
  STD_TORCH_CHECK(a.work->dim() == 2 && a.work->size(0) >= count && a.work->size(1) == 16, kOp,
                  ": work must have shape [items, 16], at least ", count, " items");
}

void set_bias(const Tensor& t, const Tensor& like, const MaskedAttention& w, MaskedBias& bias) {
  bias.dtype = dtype_of(t, kOp, "bias");
  STD_TORCH_CHECK(t.device() == like.device(), kOp, ": bias must be on the device of q");
  STD_TORCH_CHECK(t.dim() <= 4, kOp, ": bias must have at most 4 dimensions");
  const int64_t full[4] = {w.batch, w.heads, w.q_len, w.kv_len};
  int64_t* const strides[4] = {&bias.batch_stride, &bias.head_stride, &bias.query_stride, &bias.key_stride};
  for (int64_t d = 4 - t.dim(), own = 0; d < 4; ++d, ++own) {
    STD_TORCH_CHECK(t.size(own) == 1 || t.size(own) == full[d], kOp, ": bias has ", t.size(own), " in dimension ", own,
                    "; must be 1 or ", full[d]);
    *strides[d] = t.size(own) == 1 ? 0 : t.stride(own);
  }
  bias.data = t.const_data_ptr();
}

template <class Arguments>
MaskedCall prepare(const Arguments& a) {
  MaskedCall call{};
  MaskedAttention& w = call.work;
  call.dtype = dtype_of(a.q, kOp, "q");
  set_heads(a, w);
  set_groups(a, w, w.map);
  if (a.bias) set_bias(*a.bias, a.q, w, w.bias);
  STD_TORCH_CHECK(std::isfinite(a.scale), kOp, ": scale is ", a.scale, "; must be finite");
  STD_TORCH_CHECK(std::isfinite(a.softcap) && a.softcap >= 0, kOp, ": softcap is ", a.softcap,
                  "; must be positive, or 0");
  w.scale = static_cast<float>(a.scale);
  w.softcap = static_cast<float>(a.softcap);
  return call;
}

void set_results(const Tensor& q, MaskedCall& call) {
  call.out = empty_contiguous(q, q.sizes());
  call.lse = empty_contiguous(q, {q.size(0), q.size(1), q.size(2)}, aoti_torch_dtype_float32());
  call.work.out = call.out.mutable_data_ptr();
  call.work.lse = static_cast<float*>(call.lse.mutable_data_ptr());
}

}  // namespace

MaskedCall prepare_masked(const MaskedArguments& a) {
  MaskedCall call = prepare(a);
  set_map(a, call.work, call.work.map);
  set_results(a.q, call);
  return call;
}

MaskedCall prepare_masked_rows(const MaskedRowsArguments& a) {
  MaskedCall call = prepare(a);
  numbers("row_offsets", a.row_offsets, a.q);
  numbers("keys", a.keys, a.q);
  check_list("row_offsets", a.row_offsets, a.batch * a.heads * a.q.size(2) + 1);
  STD_TORCH_CHECK(a.keys.dim() == 1, kOp, ": keys must have 1 dimension");
  set_results(a.q, call);
  return call;
}

}  // namespace gossamer
