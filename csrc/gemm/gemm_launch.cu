#include "gemm/gemm_launch.cuh"

namespace gossamer {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver that is loaded already; null where it has none.
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  return found;
}

CUtensorMapDataType data_type(MatrixType type) {
  if (type == MatrixType::byte) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return type == MatrixType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, which, device);
  return value;
}

}  // namespace

CUtensorMap tensor_map(const char* op, const Matrix& x, MatrixType type, int box_rows) {
  const int width = type == MatrixType::byte ? 128 : 64;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(x.columns), static_cast<cuuint64_t>(x.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(x.stride)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(width), static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  STD_TORCH_CHECK(encoder() != nullptr, op, ": the driver has no cuTensorMapEncodeTiled");
  CUtensorMap map;
  const CUresult failed =
      encoder()(&map, data_type(type), 2, const_cast<void*>(x.data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  STD_TORCH_CHECK(failed == CUDA_SUCCESS, op, ": the copy engine does not take a matrix of ", x.rows, " rows of ",
                  x.columns, " elements, ", x.stride, " bytes apart");
  return map;
}

Rows aligned_rows(const char* op, const char* name, const Tensor& x) {
  const int64_t bytes = x.element_size();
  Rows rows = as_rows(x);
  STD_TORCH_CHECK(rows.width * bytes % 16 == 0, op, ": rows of ", name, " must be multiples of 16 bytes");
  if (!cuda::aligned(rows.tensor.const_data_ptr(), 16) || rows.stride * bytes % 16 != 0 || rows.stride <= 0) {
    rows.tensor = expanded_copy(x, x.sizes());
    rows.stride = rows.width;
  }
  return rows;
}

Matrix aligned_weight(const char* op, const char* name, const Tensor& weight) {
  const int64_t bytes = weight.element_size(), n = weight.size(0), k = weight.size(1);
  const int64_t stride = n > 1 ? weight.stride(0) * bytes : k * bytes;
  STD_TORCH_CHECK(cuda::aligned(weight.const_data_ptr(), 16) && stride % 16 == 0 && stride > 0 && n % 8 == 0, op, ": ",
                  name, " must lie in multiples of 16 bytes and have a multiple of 8 rows");
  return {weight.const_data_ptr(), n, k, stride};
}

void set_device(Gemm& gemm, const Tensor& x) {
  STD_TORCH_CHECK(attribute(cudaDevAttrComputeCapabilityMajor) == 9, gemm.op,
                  ": the CUDA kernel needs a GPU of compute capability 9.0");
  gemm.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  gemm.stream = cuda::current_stream(x);
}

}  // namespace gossamer
