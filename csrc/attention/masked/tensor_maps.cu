// Tensor maps: how TMA (sm_90) finds tiles.
#include <algorithm>

#include "attention/masked/launch.cuh"
#include "gossamer/cuda/tensor_map.h"

namespace gossamer {
namespace {

// A dimension of stride 0 has one entry: see MaskedInput::batch_at.
CUtensorMap tensor_map(const cuda::MaskedInput& x, DType dtype, int head_dim, int tokens, int heads, int batch,
                       int rows) {
  const auto entries = [](int64_t stride, int count) {
    return static_cast<cuuint64_t>(stride == 0 ? 1 : std::max(count, 1));
  };
  const auto known = [](int64_t stride) { return static_cast<cuuint64_t>(stride == 0 ? 16 : stride); };
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(std::max(tokens, 1)),
                               entries(x.head_stride, heads), entries(x.batch_stride, batch)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(x.token_stride), known(x.head_stride), known(x.batch_stride)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult failed = cuda::tensor_map_encoder("masked_attention")(
      &map, dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
      const_cast<char*>(x.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  STD_TORCH_CHECK(failed == CUDA_SUCCESS, "masked_attention: TMA does not take strides of ", x.token_stride, ", ",
                  x.head_stride, " and ", x.batch_stride, " bytes");
  return map;
}

}  // namespace

cuda::TensorMaps tensor_maps(const MaskedLaunch& launch, int head_dim) {
  cuda::TensorMaps maps{};
  if (cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) < 9) return maps;
  const cuda::MaskedWork& w = launch.work;
  maps.q = tensor_map(w.q, launch.dtype, head_dim, w.q_len, w.heads, launch.batch, launch.tile_q);
  maps.k = tensor_map(w.k, launch.dtype, head_dim, w.kv_len, launch.kv_heads, launch.batch, launch.tile_k);
  maps.v = tensor_map(w.v, launch.dtype, head_dim, w.kv_len, launch.kv_heads, launch.batch, launch.tile_k);
  return maps;
}

}  // namespace gossamer
