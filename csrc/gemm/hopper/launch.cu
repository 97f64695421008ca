#include "gemm/hopper/launch.cuh"
#include "gossamer/cuda/tensor_map.h"

namespace gossamer {
namespace {

CUtensorMapDataType data_type(MatrixType type) {
  if (type == MatrixType::byte) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return type == MatrixType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

// What all clusters have the time for until the last one is done: results, in tiles of these sizes.
int64_t occupied(const Gemm& gemm, int64_t tile_m, int64_t tile_n) {
  const int64_t clusters = gemm.multiprocessors / 2;
  const int64_t tiles = (gemm.a.rows + tile_m - 1) / tile_m * ((gemm.b.rows + gemm.up.rows + tile_n - 1) / tile_n);
  return (tiles + clusters - 1) / clusters * tile_m * tile_n;
}

}  // namespace

CUtensorMap tensor_map(const char* op, const Matrix& x, MatrixType type, int box_rows, int row_bytes) {
  const int width = type == MatrixType::byte ? row_bytes : row_bytes / 2;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(x.columns), static_cast<cuuint64_t>(x.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(x.stride)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(width), static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult failed = cuda::tensor_map_encoder(op)(
      &map, data_type(type), 2, const_cast<void*>(x.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  STD_TORCH_CHECK(failed == CUDA_SUCCESS, op, ": TMA does not take a matrix of ", x.rows, " rows of ", x.columns,
                  " elements, ", x.stride, " bytes apart");
  return map;
}

bool takes(const Tensor& x, const Tensor& weight) {
  // Measured on an H200: below, two thirds of the SMs or less have a tile, and cuBLAS, which splits k, is faster.
  constexpr int64_t kLeastRows = 192, kLeastTiles = 48;
  const int64_t bytes = weight.element_size(), n = weight.size(0), k = weight.size(1), m = x.numel() / k;
  if (m < kLeastRows || m > INT32_MAX - 256 || (m + 255) / 256 * ((n + 127) / 128) < kLeastTiles) return false;
  if (k * bytes % 16 != 0 || n % 8 != 0 || weight.stride(0) * bytes % 16 != 0) return false;
  return cuda::aligned(weight.const_data_ptr(), 16) && cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

// Large GEMMs draw all the power an H200 may have (700 W), so that bytes moved decide as well as cycles.
// Next to cuBLAS, gelu at 8192^3, both for tenths of a second: `tiles` 0.91 times as fast, `wide_tiles` 1.01, `rows`
// 0.99; at 16384^3 0.91, 0.97 and 0.99. At 4096^3 a third of the clusters would have a sixth wide tile: 0.94, 0.88 and
// 0.90. At one clock, cycles go with what `occupied` says, and `rows` takes 5% longer at 8192^3.
cuda::Sharing sharing_for(const Gemm& gemm) {
  constexpr int64_t kLong = 16 << 10;  // bytes of a row
  const int64_t bytes = gemm.a.columns * (gemm.in == MatrixType::byte ? 1 : 2);
  const int64_t tiles = occupied(gemm, 256, 128), wide = occupied(gemm, 256, 192), rows = occupied(gemm, 512, 192);
  if (wide - wide / 32 > tiles) return cuda::Sharing::tiles;
  return bytes > kLong && rows <= wide ? cuda::Sharing::rows : cuda::Sharing::wide_tiles;
}

Rows aligned_rows(const Tensor& x) {
  const int64_t bytes = x.element_size();
  Rows rows = as_rows(x);
  if (!cuda::aligned(rows.tensor.const_data_ptr(), 16) || rows.stride * bytes % 16 != 0 || rows.stride <= 0) {
    rows.tensor = expanded_copy(x, x.sizes());
    rows.stride = rows.width;
  }
  return rows;
}

Matrix matrix_of(const Tensor& weight) {
  return {weight.const_data_ptr(), weight.size(0), weight.size(1),
          weight.stride(0) * static_cast<int64_t>(weight.element_size())};
}

void set_device(Gemm& gemm, const Tensor& x) {
  gemm.multiprocessors = cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  gemm.stream = cuda::current_stream(x);
}

}  // namespace gossamer
