#include <algorithm>

#include "attention/decode/decode_attention.h"
#include "attention/decode/kernel.cuh"
#include "gossamer/cuda/launch.h"

namespace gossamer {
namespace {

using cuda::Cut;
using cuda::SharedLayout;
using cuda::Source;

constexpr int kLeastUnits = 2;  // of a CTA: fewer are not worth the merging

constexpr int aligned_up(int x) { return (x + 127) / 128 * 128; }

// `turns`: K and V take turns in one stage.
template <class Traits>
SharedLayout shared_layout(const DecodeParams& w, bool turns) {
  const auto column_bytes = [](const KvFormat& f) { return f.sparse ? cuda::columns_bytes(f.chunks) : 0; };
  SharedLayout s{};
  s.warp_begin = aligned_up(cuda::query_bytes(Traits::D, Traits::Sets));
  s.turns = turns;
  // Columns, and in the end the warp's results.
  const int results = cuda::PartialRows<Traits::D, Traits::Rows>::kFloats * int{sizeof(float)};
  s.k_stage = aligned_up(std::max({column_bytes(w.main.k), column_bytes(w.main.v), results}));
  const int k_bytes = aligned_up(w.main.k.block_bytes), v_bytes = aligned_up(w.main.v.block_bytes);
  s.v_stage = s.k_stage + (turns ? 0 : k_bytes);
  s.exchange = s.k_stage + (turns ? std::max(k_bytes, v_bytes) : k_bytes + v_bytes);
  s.barriers = s.exchange + cuda::Exchange<Traits::Sets>::kBytes;
  s.warp_bytes = aligned_up(s.barriers + 16);
  return s;
}

// Bytes behind the last warp's that it may read: a column of a token whose bits are all set.
template <class Traits>
int overrun(const SharedLayout& s) {
  const bool columns = cuda::is_sparse(Traits::K) || cuda::is_sparse(Traits::V);
  return columns ? std::max(cuda::columns_bytes(Traits::D / kChunk) - s.warp_bytes, 0) : 0;
}

// Bytes from the first block of a pool to the last.
int64_t span(const DecodeParams& w, int64_t block_stride, int64_t head_stride) {
  return (w.main.num_blocks - 1) * block_stride + (w.kv_heads - 1) * head_stride;
}

template <class Traits>
void launch(const DecodeCall& call) {
  DecodeParams w = call.work;
  constexpr int64_t kReach = int64_t{cuda::kOffsetUnit} << 32;  // 64 GiB
  STD_TORCH_CHECK(span(w, w.main.k_block_stride, w.main.k_head_stride) < kReach &&
                      span(w, w.main.v_block_stride, w.main.v_head_stride) < kReach,
                  "decode_attention: k_blocks or v_blocks span more than 64 GiB");
  const int multiprocessors = cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  // Less what the kernel has of its own.
  const int room = cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - 1024;
  const auto fitting = [&](const SharedLayout& s) {
    return std::min((room - s.warp_begin - overrun<Traits>(s)) / s.warp_bytes, Traits::kMaxWarps);
  };
  SharedLayout shared = shared_layout<Traits>(w, false);
  if (Traits::kTogether && fitting(shared) < Traits::kMaxWarps) shared = shared_layout<Traits>(w, true);
  const int warps = fitting(shared);
  STD_TORCH_CHECK(warps > 0, "decode_attention: a block does not fit into shared memory");
  shared.total = shared.warp_begin + warps * shared.warp_bytes + overrun<Traits>(shared);
  const auto kernel = cuda::decode_kernel<Traits>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared.total);

  Cut cut{};
  cut.tiles = (w.q_len * w.group + Traits::Rows - 1) / Traits::Rows;
  cut.ctas = multiprocessors;
  cut.warps = warps;
  cut.least = kLeastUnits;
  cut.factor = w.softcap > 0.0f ? w.scale / w.softcap : w.scale * cuda::kLog2e;
  cut.by_tiles = cuda::IntDivider(cut.tiles);
  cut.by_ctas = cuda::IntDivider(cut.ctas);
  cut.by_warps = cuda::IntDivider(cut.warps);
  cut.by_group = cuda::IntDivider(w.group);
  cut.by_page = cuda::IntDivider(w.page_blocks);
  // Units are counted in 32 bits: a longer sequence would be a wrong one.
  const int64_t items = int64_t{w.sequences} * w.kv_heads * cut.tiles;
  w.max_blocks = static_cast<int>(std::min<int64_t>(w.max_blocks, ((int64_t{1} << 30) - 1) / items - 2 * warps));
  const int64_t floats = int64_t{2} * cut.ctas * cuda::PartialRows<Traits::D, Traits::Rows>::kFloats;
  // Counters, then partial results.
  const Tensor memory = empty_contiguous(call.q, {4 * cut.ctas + floats}, aoti_torch_dtype_float32());
  cut.arrivals = static_cast<uint64_t*>(memory.mutable_data_ptr());
  cut.partials = static_cast<float*>(memory.mutable_data_ptr()) + 4 * cut.ctas;
  cut.ticket = cuda::next_ticket();
  const cudaStream_t stream = cuda::current_stream(call.q);
  kernel<<<cut.ctas, warps * 32, shared.total, stream>>>(w, cut, shared);
  const cudaError_t failed = cudaGetLastError();
  STD_TORCH_CHECK(failed == cudaSuccess, "decode_attention: ", cudaGetErrorString(failed));
}

// ---- which kernel ------------------------------------------------------------------------------------

template <class T, int D, Source K, Source V>
void launch_rows(const DecodeCall& call) {
  if (call.work.q_len * call.work.group <= 4) return launch<cuda::DecodeTraits<T, D, K, V, 1>>(call);
  launch<cuda::DecodeTraits<T, D, K, V, 2>>(call);
}

bool is_16_bit(const KvFormat& f, DType dtype) {
  return f.values == (dtype == DType::f16 ? Values::f16 : Values::bf16);
}
// Sparse rows that the kernels read: values of q's type, or codes with a scale per row.
bool reads_sparse(const KvFormat& f, DType dtype) {
  const bool codes = f.values == Values::i8 || f.values == Values::fp8 || f.values == Values::i4;
  return f.sparse && (is_16_bit(f, dtype) || (codes && f.scales == Scales::row));
}

// As _limits in gossamer/ops/decode_attention.py.
template <class T, int D>
void launch_sources(const DecodeCall& call) {
  const KvFormat &k = call.work.main.k, &v = call.work.main.v;
  const bool dense_k = !k.sparse && is_16_bit(k, call.dtype), dense_v = !v.sparse && is_16_bit(v, call.dtype);
  if (dense_k && dense_v) return launch_rows<T, D, Source::dense16, Source::dense16>(call);
  if (reads_sparse(k, call.dtype) && reads_sparse(v, call.dtype)) {
    const bool plain = is_16_bit(k, call.dtype) && is_16_bit(v, call.dtype);
    return plain ? launch_rows<T, D, Source::sparse16, Source::sparse16>(call)
                 : launch_rows<T, D, Source::sparse, Source::sparse>(call);
  }
  const bool coded = !k.sparse && k.values == Values::i4 && k.scales == Scales::channel;
  STD_TORCH_CHECK(coded && reads_sparse(v, call.dtype), "decode_attention: no CUDA kernel for these formats");
  launch_rows<T, D, Source::dense4, Source::sparse>(call);
}

template <class T>
void launch_head_dim(const DecodeCall& call) {
  STD_TORCH_CHECK(call.work.head_dim == 64 || call.work.head_dim == 128,
                  "decode_attention: no CUDA kernel for head_dim ", call.work.head_dim);
  call.work.head_dim == 64 ? launch_sources<T, 64>(call) : launch_sources<T, 128>(call);
}

}  // namespace

std::tuple<Tensor, Tensor> decode_attention_cuda(const DecodeArguments& arguments) {
  const DecodeCall call = prepare_decode(arguments);
  const cuda::DeviceGuard guard(arguments.q.get_device_index());
  STD_TORCH_CHECK(call.work.dense.table == nullptr || is_16_bit(call.work.dense.k, call.dtype),
                  "decode_attention: no CUDA kernel for a window of another type than q");
  if (call.work.sequences == 0 || call.work.kv_heads == 0) return {call.out, call.lse};
  STD_TORCH_CHECK(call.dtype != DType::f32, "decode_attention: no CUDA kernel for float32");
  call.dtype == DType::f16 ? launch_head_dim<__half>(call) : launch_head_dim<__nv_bfloat16>(call);
  return {call.out, call.lse};
}

}  // namespace gossamer
