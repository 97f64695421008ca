#include <algorithm>

#include "attention/decode/codes.h"
#include "attention/decode/decode_attention.h"
#include "attention/decode/kernel.cuh"
#include "attention/decode/launch.cuh"

namespace gossamer {
namespace {

using cuda::aligned_up;
using cuda::check_launched;
using cuda::check_reach;
using cuda::Cut;
using cuda::make_cut;
using cuda::SharedLayout;
using cuda::Source;

// Bytes of a warp for what blocks of a format are laid out in.
int column_bytes(const KvFormat& f, Source source) {
  if (source == Source::sparse4) return f.values == Values::i4 ? 0 : f.chunks * cuda::kNibbleStride;
  return f.sparse ? cuda::columns_bytes(f.chunks) : 0;
}

// `turns`: K and V take turns in one stage.
template <class Traits>
SharedLayout shared_layout(const DecodeParams& w, bool turns) {
  SharedLayout s{};
  s.table = aligned_up(cuda::query_bytes(Traits::D, Traits::Sets));
  s.warp_begin = s.table + (Traits::kSpread ? cuda::kSpreadBytes : 0);
  s.turns = turns;
  // Columns, and in the end the warp's results.
  const int results = cuda::PartialRows<Traits::D, Traits::Rows>::kFloats * int{sizeof(float)};
  s.k_stage = aligned_up(std::max({column_bytes(w.main.k, Traits::K), column_bytes(w.main.v, Traits::V), results}));
  const int k_bytes = aligned_up(w.main.k.block_bytes), v_bytes = aligned_up(w.main.v.block_bytes);
  s.v_stage = s.k_stage + (turns ? 0 : k_bytes);
  s.channels = s.k_stage + (turns ? std::max(k_bytes, v_bytes) : k_bytes + v_bytes);
  const bool by_channel = Traits::K == Source::sparse_any || Traits::V == Source::sparse_any || Traits::kSpread;
  s.exchange = s.channels + (by_channel ? 4 * Traits::D : 0);
  s.barriers = s.exchange + cuda::Exchange<Traits::Sets>::kBytes;
  s.warp_bytes = aligned_up(s.barriers + 16);
  return s;
}

// Bytes behind the last warp's that it may read: codes or a column of a token whose bits are all set.
template <class Traits>
int overrun(const SharedLayout& s) {
  constexpr int D = Traits::D;
  const bool columns = cuda::in_columns(Traits::K) || cuda::in_columns(Traits::V);
  const int column = columns ? cuda::columns_bytes(D / kChunk) : 0;
  // Two words from the last rank on; the bitmap comes before them.
  const int codes = Traits::kSpread ? s.v_stage + kBlockTokens * D / 8 + (D / kChunk + 2) * cuda::kNibbleStride : 0;
  return std::max(std::max(column, codes) - s.warp_bytes, 0);
}

template <class Traits>
void launch(const DecodeCall& call) {
  DecodeParams w = call.work;
  check_reach(w);
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
  Tensor memory;
  const Cut cut = make_cut<cuda::PartialRows<Traits::D, Traits::Rows>>(call, w, Traits::Rows, warps, 1, memory);
  kernel<<<cut.ctas, warps * 32, shared.total, cuda::current_stream(call.q)>>>(w, cut, shared);
  check_launched();
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
// Sparse rows that the kernels read: values of q's type, or codes.
bool reads_sparse(const KvFormat& f, DType dtype) {
  return f.sparse && (is_16_bit(f, dtype) || f.scales == Scales::row || f.scales == Scales::channel);
}

}  // namespace

void launch_codes(const DecodeCall& call) {
  const int head_dim = call.work.head_dim;
  STD_TORCH_CHECK(has_codes_kernel(head_dim), "decode_attention: no CUDA kernel for codes of head_dim ", head_dim);
  if (head_dim == 64) return launch_codes<64>(call);
  if (head_dim == 80) return launch_codes<80>(call);
  if (head_dim == 96) return launch_codes<96>(call);
  if (head_dim == 128) return launch_codes<128>(call);
  launch_codes<256>(call);
}

namespace {

// As _limits in gossamer/ops/decode_attention.py.
template <class T, int D>
void launch_sources(const DecodeCall& call) {
  const KvFormat &k = call.work.main.k, &v = call.work.main.v;
  const bool k_16 = is_16_bit(k, call.dtype), v_16 = is_16_bit(v, call.dtype);
  if (!k.sparse && k_16 && !v.sparse && v_16) return launch_rows<T, D, Source::dense16, Source::dense16>(call);
  const bool coded = !k.sparse && k.values == Values::i4 && k.scales == Scales::channel;
  STD_TORCH_CHECK(reads_sparse(v, call.dtype) && (coded || reads_sparse(k, call.dtype)),
                  "decode_attention: no CUDA kernel for these formats");
  const auto few_bits = [](const KvFormat& f) { return f.sparse && f.bits <= 4; };
  if (few_bits(v) && (coded || few_bits(k))) {
    return coded ? launch_rows<T, D, Source::dense4, Source::sparse4>(call)
                 : launch_rows<T, D, Source::sparse4, Source::sparse4>(call);
  }
  if (coded) {
    return v.scales == Scales::channel ? launch_rows<T, D, Source::dense4, Source::sparse_any>(call)
                                       : launch_rows<T, D, Source::dense4, Source::sparse>(call);
  }
  if (k_16 && v_16) return launch_rows<T, D, Source::sparse16, Source::sparse16>(call);
  const bool by_channel = k.scales == Scales::channel || v.scales == Scales::channel;
  by_channel ? launch_rows<T, D, Source::sparse_any, Source::sparse_any>(call)
             : launch_rows<T, D, Source::sparse, Source::sparse>(call);
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
  if (call.work.main.k.has_codes() && call.work.main.v.has_codes()) {
    launch_codes(call);
    return {call.out, call.lse};
  }
  call.dtype == DType::f16 ? launch_head_dim<__half>(call) : launch_head_dim<__nv_bfloat16>(call);
  return {call.out, call.lse};
}

}  // namespace gossamer
