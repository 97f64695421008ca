#include "gemm/hopper/launch.cuh"
#include "gemm/skinny/kernel.cuh"
#include "gemm/skinny/launch.cuh"
#include "gossamer/cuda/tensor_map.h"

namespace gossamer {
namespace {

using cuda::SkinnyDepth;

constexpr int64_t kMostRows = 64, kLeastSteps = 4;  // kLeastSteps: of a CTA, so that it has more to do than to begin
constexpr int kMostCtas = 4;                        // of a cluster
constexpr int kTileN = 64;

// The fewest that wgmma multiplies at once and the kernel is made for.
int tokens_for(int64_t rows) { return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64; }

// A tensor of 2 or 4 dimensions, the first of which lies side by side; strides in bytes. Asking the L2 for 256 bytes at
// a time, as is common, takes 3 to 4% longer here.
CUtensorMap map_of(const char* op, DType type, const void* data, int dims, const cuuint64_t* sizes,
                   const cuuint64_t* strides, const cuuint32_t* box) {
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult failed = cuda::tensor_map_encoder(op)(
      &map, type == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, dims,
      const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  STD_TORCH_CHECK(failed == CUDA_SUCCESS, op, ": TMA does not take rows of ", sizes[0], " elements, ", strides[0],
                  " bytes apart");
  return map;
}

CUtensorMap map_rows(const char* op, DType type, const void* data, int64_t rows, int64_t k, int64_t stride,
                     int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride * 2)};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  return map_of(op, type, data, 2, sizes, strides, box);
}

// 8 rows of gate, 8 of up, and so on: one thread then has the sums of both.
CUtensorMap map_pairs(const char* op, DType type, const Tensor& weight) {
  const cuuint64_t half = weight.size(0) / 2, stride = weight.stride(0) * 2;
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(weight.size(1)), 8, 2, half / 8};
  const cuuint64_t strides[3] = {stride, half * stride, 8 * stride};
  const cuuint32_t box[4] = {64, 8, 2, 4};
  return map_of(op, type, weight.const_data_ptr(), 4, sizes, strides, box);
}

// How CTAs share the work: as many to a tile as all SMs have room for; where there are more tiles than that, the same
// number of tiles to each. Clusters that do not fit at once are slower: 94 us for gated_mlp, not 87.6.
struct Sharing {
  SkinnyDepth depth;
  int ctas;  // of a cluster
  int clusters;
};

// `followed`: by a GEMM that takes the results.
Sharing sharing_of(int64_t tiles, int64_t steps, int tokens, bool followed) {
  const int64_t multiprocessors = cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const bool one = tiles <= multiprocessors || (followed && tokens < 64);
  const int64_t room = multiprocessors * (one ? 1 : 2), turns = (tiles + room - 1) / room;
  int ctas = 1;
  while (ctas < kMostCtas && tiles * ctas * 2 <= room && steps >= ctas * 2 * kLeastSteps) ctas *= 2;
  return {one ? SkinnyDepth::one : SkinnyDepth::two, ctas, static_cast<int>((tiles + turns - 1) / turns)};
}

// A GEMM that is ready to be launched, and what it needs until then.
struct Prepared {
  cuda::SkinnyWork work;
  Sharing sharing;
  Rows x;
  std::optional<Tensor> bias;
};

Prepared prepare(const char* op, const Tensor& x, const SkinnyGemm& gemm, const Tensor& out, bool followed) {
  const DType type = dtype_of(x, op, "x");
  Prepared made{{}, {}, aligned_rows(x), dense(gemm.bias)};
  const Tensor& weight = gemm.weight;
  const int64_t m = made.x.count, n = out.size(out.dim() - 1), k = weight.size(1);
  const int tokens = tokens_for(m);
  const int64_t height = gemm.gated ? kTileN / 2 : kTileN, step = tokens < 64 ? 128 : 64;
  cuda::SkinnyWork& w = made.work;
  w.weight = gemm.gated ? map_pairs(op, type, weight)
                        : map_rows(op, type, weight.const_data_ptr(), n, k, weight.stride(0), kTileN);
  w.x = map_rows(op, type, made.x.tensor.const_data_ptr(), m, k, m > 1 ? made.x.stride : k, tokens);
  w.bias = data_of(made.bias);
  w.out = out.mutable_data_ptr();
  w.m = static_cast<int>(m), w.n = static_cast<int>(n);
  w.tiles = static_cast<int>((n + height - 1) / height), w.steps = static_cast<int>((k + step - 1) / step);
  w.activation = gemm.activation, w.gated = gemm.gated;
  made.sharing = sharing_of(w.tiles, w.steps, tokens, followed);
  return made;
}

// `follows`: x are the results of the launch before, which this one waits for when it has its first weights.
template <class Traits>
void launch(const char* op, const Prepared& made, bool follows) {
  static_assert(Traits::kTileN == kTileN && Traits::kTileK * Traits::kBoxes == (Traits::kTokens < 64 ? 128 : 64));
  const auto kernel = cuda::skinny_kernel<Traits>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(made.sharing.ctas), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(made.sharing.clusters * made.sharing.ctas);
  config.blockDim = Traits::kThreads;
  config.dynamicSmemBytes = Traits::kSharedBytes;
  config.stream = cuda::current_stream(made.x.tensor);
  config.attrs = attributes, config.numAttrs = follows ? 2 : 1;
  const cudaError_t failed = cudaLaunchKernelEx(&config, kernel, made.work);
  STD_TORCH_CHECK(failed == cudaSuccess, op, ": ", cudaGetErrorString(failed));
}

template <class T, int Tokens>
void launch_by_depth(const char* op, const Prepared& made, bool follows) {
  if (made.sharing.depth == SkinnyDepth::one)
    return launch<cuda::SkinnyTraits<T, Tokens, SkinnyDepth::one>>(op, made, follows);
  launch<cuda::SkinnyTraits<T, Tokens, SkinnyDepth::two>>(op, made, follows);
}

template <class T>
void launch_as(const char* op, const Prepared& made, bool follows) {
  switch (tokens_for(made.work.m)) {
    case 8:
      return launch_by_depth<T, 8>(op, made, follows);
    case 16:
      return launch_by_depth<T, 16>(op, made, follows);
    case 32:
      return launch_by_depth<T, 32>(op, made, follows);
    default:
      return launch_by_depth<T, 64>(op, made, follows);
  }
}

void launch(const char* op, const Prepared& made, bool follows) {
  if (made.x.tensor.scalar_type() == ScalarType::Half) return launch_as<__half>(op, made, follows);
  launch_as<__nv_bfloat16>(op, made, follows);
}

}  // namespace

bool skinny_takes(int64_t rows, const Tensor& weight, bool gated) {
  const int64_t n = weight.size(0), k = weight.size(1), stride = weight.stride(0);
  if (rows < 1 || rows > kMostRows || n < 1 || n > INT32_MAX - 256 || k > INT32_MAX - 256) return false;
  if (weight.element_size() != 2 || k % 8 != 0 || (gated && n % 16 != 0) || stride % 8 != 0 || stride < k) return false;
  return cuda::aligned(weight.const_data_ptr(), 16) && cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

Tensor skinny_gemm(const char* op, const Tensor& x, const SkinnyGemm& gemm) {
  const Tensor out = empty_result(x, gemm.weight.size(0));
  launch(op, prepare(op, x, gemm, out, false), false);
  return out;
}

Tensor skinny_gemms(const char* op, const Tensor& x, const SkinnyGemm& first, const SkinnyGemm& second) {
  const int64_t rows = x.numel() / x.size(x.dim() - 1);
  const Tensor out = empty_result(x, second.weight.size(0));
  const Tensor hidden = empty_contiguous(x, {rows, second.weight.size(1)});
  const Prepared before = prepare(op, x, first, hidden, true), after = prepare(op, hidden, second, out, false);
  launch(op, before, false);
  launch(op, after, true);
  return out;
}

}  // namespace gossamer
