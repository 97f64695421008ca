#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/prefill/kernel.cuh"
#include "attention/prefill/prefill_attention.h"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/tensor_map.h"

namespace gossamer {
namespace {

constexpr const char* kOp = "prefill_attention";

void check_rows(const char* name, const Tensor& t, const Tensor& q) {
  check_matches(t, q, kOp, name);
  STD_TORCH_CHECK(t.dim() == 3 && t.size(2) == q.size(2), kOp, ": ", name, " must be [tokens, heads, ", q.size(2), "]");
  STD_TORCH_CHECK(t.size(0) <= std::numeric_limits<int>::max() - cuda::kTileKeys, kOp, ": ", name, " is too long");
  const auto strides = t.strides();
  STD_TORCH_CHECK(strides[2] == 1, kOp, ": the last stride of ", name, " is ", strides[2], "; must be 1");
  // TMA takes no others; `limits` of the op keeps them away.
  STD_TORCH_CHECK(
      strides[0] > 0 && strides[1] > 0 && (strides[0] | strides[1]) % 8 == 0 && cuda::aligned(t.const_data_ptr(), 16),
      kOp, ": the CUDA kernel takes ", name, " in multiples of 16 bytes");
}

void check_pair(const char* k_name, const char* v_name, const Tensor& k, const Tensor& v, const Tensor& q) {
  check_rows(k_name, k, q);
  check_rows(v_name, v, q);
  STD_TORCH_CHECK(k.size(0) == v.size(0) && k.size(1) == v.size(1), kOp, ": ", v_name, " must have the shape of ",
                  k_name);
}

void check_numbers(const char* name, const Tensor& t, int64_t columns, const Tensor& q) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Int, kOp, ": ", name, " must be int32");
  STD_TORCH_CHECK(t.device() == q.device(), kOp, ": ", name, " must be on the device of q");
  STD_TORCH_CHECK(t.dim() == 2 && t.size(1) == columns && t.is_contiguous(), kOp, ": ", name,
                  " must be contiguous, [, ", columns, "]");
}

int checked_tokens(const char* name, int64_t value, int64_t least, int64_t unit) {
  STD_TORCH_CHECK(value >= least && value < cuda::kUnlimited && (value < 0 || value % unit == 0), kOp, ": ", name,
                  " is ", value, "; must be a multiple of ", unit, ", ", least, " or more");
  return static_cast<int>(value);
}

void check(const PrefillArguments& a) {
  const DType dtype = dtype_of(a.q, kOp, "q");
  STD_TORCH_CHECK(a.q.dim() == 3, kOp, ": q must have 3 dimensions");
  STD_TORCH_CHECK(dtype != DType::f32 && (a.q.size(2) == 64 || a.q.size(2) == 128), kOp,
                  ": the CUDA kernel takes float16 and bfloat16, head_dim 64 and 128");
  check_rows("q", a.q, a.q);
  check_pair("k", "v", a.k, a.v, a.q);
  STD_TORCH_CHECK(a.k.size(1) >= 1 && a.q.size(1) >= 1 && a.q.size(1) % a.k.size(1) == 0, kOp, ": q has ", a.q.size(1),
                  " heads and k ", a.k.size(1), "; must be a multiple");
  STD_TORCH_CHECK(a.far_k.has_value() == a.far_v.has_value(), kOp, ": far_k and far_v must be given together");
  if (a.far_k) {
    check_pair("far_k", "far_v", *a.far_k, *a.far_v, a.q);
    STD_TORCH_CHECK(a.far_k->size(1) == a.k.size(1), kOp, ": far_k must have the heads of k");
  }
  check_numbers("sequences", a.sequences, 7, a.q);
  check_numbers("tiles", a.tiles, 2, a.q);
  STD_TORCH_CHECK(cuda::aligned(a.tiles.const_data_ptr(), 8), kOp, ": tiles must lie in multiples of 8 bytes");
  STD_TORCH_CHECK(std::isfinite(a.scale) && a.scale > 0, kOp, ": scale is ", a.scale, "; must be finite and > 0");
}

// Of a tensor [tokens, heads, D], for boxes of 64 channels of `rows` tokens of a head; zeros beyond the last token.
CUtensorMap tensor_map(const Tensor& t, int rows) {
  const auto sizes = t.sizes(), strides = t.strides();
  const auto entries = [](int64_t count) { return static_cast<cuuint64_t>(std::max<int64_t>(count, 1)); };
  const cuuint64_t extents[3] = {entries(sizes[2]), entries(sizes[1]), entries(sizes[0])};
  const cuuint64_t steps[2] = {static_cast<cuuint64_t>(2 * strides[1]), static_cast<cuuint64_t>(2 * strides[0])};
  const cuuint32_t box[3] = {64, 1, static_cast<cuuint32_t>(rows)}, ones[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult failed = cuda::tensor_map_encoder(kOp)(
      &map, t.scalar_type() == ScalarType::Half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
      const_cast<void*>(t.const_data_ptr()), extents, steps, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  STD_TORCH_CHECK(failed == CUDA_SUCCESS, kOp, ": TMA does not take strides of ", steps[0], " and ", steps[1],
                  " bytes");
  return map;
}

cuda::PrefillRule rule_of(const PrefillArguments& a) {
  cuda::PrefillRule rule;
  rule.window = checked_tokens("window", a.window, -1, 32);
  rule.sink = checked_tokens("sink", a.sink, 0, 32);
  rule.sliding = checked_tokens("sliding", a.sliding, 0, 1);
  if (rule.window < 0) rule.window = cuda::kUnlimited, rule.sink = 0;
  if (rule.sliding == 0) rule.sliding = cuda::kUnlimited;
  return rule;
}

template <class T, int D>
void launch(const cuda::PrefillWork& w, cudaStream_t stream) {
  using Traits = cuda::PrefillTraits<T, D>;
  constexpr auto kernel = cuda::prefill_kernel<Traits>;
  static cuda::OncePerDevice asked;
  asked([] { cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes); });
  const int ctas = std::min(w.items, cuda::device_attribute(cudaDevAttrMultiProcessorCount));
  kernel<<<ctas, Traits::kThreads, Traits::kSharedBytes, stream>>>(w);
  const cudaError_t failed = cudaGetLastError();
  STD_TORCH_CHECK(failed == cudaSuccess, kOp, ": ", cudaGetErrorString(failed));
}

void launch(const cuda::PrefillWork& w, bool half, int64_t head_dim, cudaStream_t stream) {
  if (head_dim == 64) return half ? launch<__half, 64>(w, stream) : launch<__nv_bfloat16, 64>(w, stream);
  half ? launch<__half, 128>(w, stream) : launch<__nv_bfloat16, 128>(w, stream);
}

}  // namespace

Tensor prefill_attention_cuda(const PrefillArguments& a) {
  check(a);
  cuda::PrefillWork w{};
  w.rule = rule_of(a);
  const int64_t heads = a.q.size(1), items = a.tiles.size(0) * heads;
  STD_TORCH_CHECK(items < std::numeric_limits<int>::max() / 2, kOp, ": ", items, " items are too many");
  Tensor out = empty_contiguous(a.q, a.q.sizes());
  if (items == 0) return out;
  const cuda::DeviceGuard guard(a.q.get_device_index());
  STD_TORCH_CHECK(cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
                      cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0,
                  kOp, ": the CUDA kernel needs compute capability 9.0");
  w.q = tensor_map(a.q, cuda::kTileQueries / 2);
  w.k = tensor_map(a.k, cuda::kTileKeys), w.v = tensor_map(a.v, cuda::kTileKeys);
  const bool far = a.far_k && a.far_k->size(0) > 0;  // else they are not read
  w.far_k = far ? tensor_map(*a.far_k, cuda::kTileKeys) : w.k;
  w.far_v = far ? tensor_map(*a.far_v, cuda::kTileKeys) : w.v;
  w.sequences = static_cast<const int*>(a.sequences.const_data_ptr());
  w.tiles = static_cast<const int2*>(a.tiles.const_data_ptr());
  w.out = out.mutable_data_ptr();
  w.items = static_cast<int>(items), w.heads = static_cast<int>(heads);
  w.group = static_cast<int>(heads / a.k.size(1));
  w.factor = static_cast<float>(a.scale) * cuda::kLog2e;
  launch(w, a.q.scalar_type() == ScalarType::Half, a.q.size(2), cuda::current_stream(a.q));
  return out;
}

}  // namespace gossamer
