#include <limits>

#include "attention/masked/launch.cuh"
#include "attention/masked/masked_attention.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "masked_attention";

// Whether TMA takes rows of q, k or v: it begins, and they lie, at multiples of 16 bytes.
bool takes(const Tensor& t) {
  constexpr int64_t kUnit = 16 / 2;  // elements
  const auto strides = t.strides();
  return cuda::aligned(t.const_data_ptr(), 16) && strides[2] > 0 && (strides[0] | strides[1] | strides[2]) % kUnit == 0;
}

// What it takes: `t` itself or a copy.
Tensor taken(const Tensor& t) { return takes(t) ? t : expanded_copy(t, t.sizes()); }

cuda::MaskedInput input_of(const MaskedHeads& heads) {
  constexpr int64_t kBytes = 2;
  return {static_cast<const char*>(heads.data), heads.batch_stride * kBytes, heads.head_stride * kBytes,
          heads.token_stride * kBytes};
}

void set_scores(const MaskedParams& a, cuda::MaskedWork& w) {
  w.bent = a.softcap > 0.0f || a.scale <= 0.0f;  // maxima of q k are not those of scores
  w.cap = a.softcap * cuda::kLog2e;
  w.before = a.softcap > 0.0f ? a.scale / a.softcap : a.scale * cuda::kLog2e;
  w.after = w.bent ? 1.0f : w.before;
}

void set_grid(const MaskedParams& a, cuda::MaskedWork& w) {
  const MaskedMap& map = a.map;
  w.map_has_batch = map.batch > 1;
  w.map_has_heads = map.heads > 1;
  w.map_heads = map.heads;
  w.rows = map.rows;
  w.replica_heads = map.heads > 1 ? 1 : a.heads;
  w.replicas = (map.batch > 1 ? 1 : a.batch) * w.replica_heads;
  w.by_replicas = cuda::Divider(w.replicas);
  w.by_replica_heads = cuda::Divider(w.replica_heads);
  w.by_rows = cuda::Divider(w.rows);
  w.by_map_heads = cuda::Divider(w.map_heads);
  w.by_group = cuda::Divider(a.heads / a.kv_heads);
}

// Items of `work`, and room for the parts of rows that are cut: a row in n > 1 parts has n items and n slots, which is
// at most twice the n - 1 items that it is more than one.
Tensor set_items(const Tensor& q, const std::optional<Tensor>& work, const MaskedParams& a, cuda::MaskedWork& w) {
  const int64_t rows = int64_t{a.map.batch} * a.map.heads * a.map.rows;
  int64_t items = rows;
  if (work) {
    items = work->size(0);  // checked with the map
    w.work = static_cast<const cuda::WorkLine*>(work->const_data_ptr());
    STD_TORCH_CHECK(cuda::aligned(w.work, 16), kOp, ": work does not lie in multiples of 16 bytes");
  }
  STD_TORCH_CHECK(items * w.replicas <= std::numeric_limits<int>::max(), kOp, ": ", items, " items for ", w.replicas,
                  " batches and heads are too many");
  w.items = static_cast<int>(items);
  if (items == rows) return {};
  w.slots = static_cast<int>(2 * (items - rows));
  const int64_t count = int64_t{w.slots} * w.replicas;
  const Tensor memory =
      empty_contiguous(q, {count * (2 + a.map.tile_q * (a.head_dim + 2))}, aoti_torch_dtype_float32());
  w.partials = static_cast<float*>(memory.mutable_data_ptr());
  w.arrivals = reinterpret_cast<uint64_t*>(w.partials + count * a.map.tile_q * (a.head_dim + 2));
  w.ticket = cuda::next_ticket();
  return memory;
}

}  // namespace

std::tuple<Tensor, Tensor> masked_attention_cuda(const MaskedArguments& arguments) {
  const MaskedCall call = prepare_masked(arguments);
  const MaskedParams& a = call.work;
  STD_TORCH_CHECK(call.dtype != DType::f32 && !arguments.bias && (a.head_dim == 64 || a.head_dim == 128), kOp,
                  ": the CUDA kernel takes float16 and bfloat16, head_dim 64 and 128, no bias");
  if (a.batch == 0 || a.q_len == 0) return {call.out, call.lse};
  const Tensor& q = arguments.q;
  if (!takes(q) || !takes(arguments.k) || !takes(arguments.v)) {
    MaskedArguments own = arguments;
    own.q = taken(q), own.k = taken(own.k), own.v = taken(own.v);
    return masked_attention_cuda(own);
  }
  const cuda::DeviceGuard guard(q.get_device_index());
  MaskedLaunch launch{{},           a.batch,      a.kv_heads,
                      a.map.tile_q, a.map.tile_k, cuda::device_attribute(cudaDevAttrMultiProcessorCount),
                      a.map.tiles,  call.dtype,   cuda::current_stream(q)};
  cuda::MaskedWork& w = launch.work;
  w.q = input_of(a.q);
  w.k = input_of(a.k);
  w.v = input_of(a.v);
  w.offsets = a.map.offsets, w.columns = a.map.columns, w.kinds = a.map.kinds, w.bits = a.map.bits;
  w.order = a.map.order;
  w.out = a.out, w.lse = a.lse;
  w.q_len = a.q_len, w.kv_len = a.kv_len, w.heads = a.heads;
  set_scores(a, w);
  set_grid(a, w);
  const Tensor memory = set_items(q, arguments.work, a, w);
  a.head_dim == 64 ? launch_masked_64(launch) : launch_masked_128(launch);
  return {call.out, call.lse};
}

}  // namespace gossamer
