#include "attention/masked/call.h"

#include <cmath>
#include <limits>

namespace gossamer {
namespace {

constexpr const char* kOp = "masked_attention";  // with tiles or lists of keys

MaskedHeads heads_of(const char* name, const Tensor& t) {
  const auto strides = t.strides();
  STD_TORCH_CHECK(strides[3] == 1, kOp, ": the last stride of ", name, " is ", strides[3], "; must be 1");
  return {t.const_data_ptr(), strides[0], strides[1], strides[2]};
}

int checked_length(const char* name, int64_t length) {
  STD_TORCH_CHECK(length <= std::numeric_limits<int>::max() - kMaxMaskedTile, kOp, ": ", name, " is too long");
  return static_cast<int>(length);
}

template <class Arguments>
void set_heads(const Arguments& a, MaskedParams& w) {
  check_matches(a.k, a.q, kOp, "k");
  check_matches(a.v, a.q, kOp, "v");
  const auto q = a.q.sizes(), k = a.k.sizes(), v = a.v.sizes();  // once: each question goes through torch's C interface
  STD_TORCH_CHECK(q.size() == 4, kOp, ": q must have 4 dimensions");
  const int64_t head_dim = q[3];
  STD_TORCH_CHECK(head_dim >= 32 && head_dim <= kMaxMaskedHeadDim && head_dim % 8 == 0, kOp, ": head_dim is ", head_dim,
                  "; must be a multiple of 8, 32 to ", kMaxMaskedHeadDim);
  STD_TORCH_CHECK(k.size() == 4 && k[0] == q[0] && k[3] == head_dim, kOp, ": k must have the batch and head_dim of q");
  STD_TORCH_CHECK(v.size() == 4, kOp, ": v must have 4 dimensions");
  for (int d = 0; d < 4; ++d) STD_TORCH_CHECK(v[d] == k[d], kOp, ": v must have the shape of k");
  STD_TORCH_CHECK(q[1] >= 1 && k[1] >= 1 && q[1] % k[1] == 0, kOp, ": q has ", q[1], " heads and k ", k[1],
                  "; must be a multiple");
  w.batch = checked_length("the batch", q[0]);
  w.heads = checked_length("the list of heads", q[1]);
  w.kv_heads = static_cast<int>(k[1]);
  w.q_len = checked_length("q", q[2]);
  w.kv_len = checked_length("k", k[2]);
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

void set_groups(int64_t batch, int64_t heads, const MaskedParams& w, MaskedMap& map) {
  STD_TORCH_CHECK(batch == 1 || batch == w.batch, kOp, ": batch is ", batch, "; must be 1 or ", w.batch);
  STD_TORCH_CHECK(heads == 1 || heads == w.heads, kOp, ": heads is ", heads, "; must be 1 or ", w.heads);
  map.batch = static_cast<int>(batch);
  map.heads = static_cast<int>(heads);
}

void set_patterns(const Tensor& t, MaskedMap& map) {
  const auto bits = t.sizes();
  STD_TORCH_CHECK(bits.size() == 3 && bits[0] >= 1, kOp, ": bits must have shape [patterns, tile_q, tile_k / 32]");
  map.patterns = bits[0];
  map.tile_q = checked_tile("tile_q", bits[1], 16);
  map.tile_k = checked_tile("tile_k", bits[2] * kWordKeys, kWordKeys);
}

void set_map(const MaskedArguments& a, const MaskedParams& w, MaskedMap& map) {
  map.offsets = numbers("offsets", a.offsets, a.q);
  map.columns = numbers("tiles", a.tiles, a.q);
  map.bits = numbers("bits", a.bits, a.q);
  map.order = numbers("order", a.order, a.q);
  set_patterns(a.bits, map);
  map.rows = (w.q_len + map.tile_q - 1) / map.tile_q;
  const auto tiles = a.tiles.sizes(), order = a.order.sizes();
  STD_TORCH_CHECK(order.size() == 3 && order[2] == map.rows, kOp, ": order must have shape [batch, heads, ", map.rows,
                  "]");
  set_groups(order[0], order[1], w, map);
  STD_TORCH_CHECK(tiles.size() == 2 && tiles[0] == 2, kOp, ": tiles must have shape [2, tiles]");
  map.tiles = tiles[1];
  map.kinds = map.columns + map.tiles;
  const int64_t count = order[0] * order[1] * map.rows;
  STD_TORCH_CHECK(count < std::numeric_limits<int32_t>::max(), kOp, ": the map has ", count, " rows; too many");
  check_list("offsets", a.offsets, count + 1);
  if (!a.work) return;
  numbers("work", *a.work, a.q);
  STD_TORCH_CHECK(a.work->dim() == 2 && a.work->size(0) >= count && a.work->size(1) == 16, kOp,
                  ": work must have shape [items, 16], at least ", count, " items");
}

void set_bias(const Tensor& t, const Tensor& like, const MaskedParams& w, MaskedBias& bias) {
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
  MaskedParams& w = call.work;
  call.dtype = dtype_of(a.q, kOp, "q");
  set_heads(a, w);
  if (a.bias) set_bias(*a.bias, a.q, w, w.bias);
  STD_TORCH_CHECK(std::isfinite(a.scale), kOp, ": scale is ", a.scale, "; must be finite");
  STD_TORCH_CHECK(std::isfinite(a.softcap) && a.softcap >= 0, kOp, ": softcap is ", a.softcap,
                  "; must be positive, or 0");
  w.scale = static_cast<float>(a.scale);
  w.softcap = static_cast<float>(a.softcap);
  return call;
}

void set_results(const Tensor& q, bool with_lse, MaskedCall& call) {
  const auto sizes = q.sizes();
  call.out = empty_contiguous(q, sizes);
  call.work.out = call.out.mutable_data_ptr();
  if (!with_lse) return;
  call.lse = empty_contiguous(q, {sizes[0], sizes[1], sizes[2]}, aoti_torch_dtype_float32());
  call.work.lse = static_cast<float*>(call.lse.mutable_data_ptr());
}

}  // namespace

MaskedCall prepare_masked(const MaskedArguments& a) {
  MaskedCall call = prepare(a);
  set_map(a, call.work, call.work.map);
  set_results(a.q, a.with_lse, call);
  return call;
}

MaskedCall prepare_masked_rows(const MaskedRowsArguments& a) {
  MaskedCall call = prepare(a);
  set_groups(a.batch, a.heads, call.work, call.work.map);
  numbers("row_offsets", a.row_offsets, a.q);
  numbers("keys", a.keys, a.q);
  check_list("row_offsets", a.row_offsets, a.batch * a.heads * a.q.size(2) + 1);
  STD_TORCH_CHECK(a.keys.dim() == 1, kOp, ": keys must have 1 dimension");
  set_results(a.q, true, call);
  return call;
}

}  // namespace gossamer
