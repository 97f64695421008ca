// The launch of the kernel in kernel.cuh, for the files that hold its instances.
#pragma once

#include "gemm/hopper/kernel.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/torch/rows.h"

namespace gossamer {

// A matrix [rows, columns] whose rows lie `stride` bytes apart.
struct Matrix {
  const void* data;
  int64_t rows, columns, stride;
};

enum class MatrixType { f16, bf16, byte };

// For TMA: boxes of box_rows rows of row_bytes, with the 128-byte swizzle where that is 128; zeros beyond the edges.
CUtensorMap tensor_map(const char* op, const Matrix& x, MatrixType type, int box_rows, int row_bytes = 128);

// A [m, k], B [n, k] and the contiguous result C [m, n]; the epilogue's arguments are in `work` already.
struct Gemm {
  const char* op;
  Matrix a, b, c;
  Matrix up;  // [n, k] where B is gate
  MatrixType in, out;
  cuda::GemmWork work;
  int multiprocessors;
  cudaStream_t stream;
};

template <class Traits>
void launch_gemm(Gemm& gemm) {
  constexpr int kPairM = Traits::kCluster * Traits::kTileM;
  cuda::GemmWork& w = gemm.work;
  w.m = static_cast<int>(gemm.a.rows), w.n = static_cast<int>(gemm.c.columns);
  w.k_steps = static_cast<int>((gemm.a.columns + Traits::kTileK - 1) / Traits::kTileK);
  w.tile_rows = (w.m + kPairM - 1) / kPairM;
  w.tile_columns = (w.n + Traits::kWidth - 1) / Traits::kWidth;
  w.a = tensor_map(gemm.op, gemm.a, gemm.in, Traits::kTileM);
  w.b = tensor_map(gemm.op, gemm.b, gemm.in, Traits::kTileN / Traits::kCluster);
  if (Traits::kGated) w.up = tensor_map(gemm.op, gemm.up, gemm.in, Traits::kTileN / Traits::kCluster);
  w.c = tensor_map(gemm.op, gemm.c, gemm.out, 64, 2 * Traits::kPieceColumns);
  const auto kernel = cuda::gemm_kernel<Traits>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSharedBytes);
  const int64_t tiles = int64_t{w.tile_rows} * w.tile_columns;
  const int clusters = static_cast<int>(tiles < gemm.multiprocessors / 2 ? tiles : gemm.multiprocessors / 2);
  kernel<<<clusters * Traits::kCluster, Traits::kThreads, Traits::kSharedBytes, gemm.stream>>>(w);
  const cudaError_t failed = cudaGetLastError();
  STD_TORCH_CHECK(failed == cudaSuccess, gemm.op, ": ", cudaGetErrorString(failed));
}

// Whether the kernel takes this GEMM, and is the best one for it: on compute capability 9.0, which alone has wgmma,
// with rows of weight and results in multiples of 16 bytes, and more than a few rows of x.
bool takes(const Tensor& x, const Tensor& weight);

// How warpgroups should share this GEMM.
cuda::Sharing sharing_for(const Gemm& gemm);

// x as rows that TMA takes: where they do not lie in multiples of 16 bytes, a copy does.
Rows aligned_rows(const Tensor& x);
Matrix matrix_of(const Tensor& weight);

// The multiprocessors and stream of x's device, which is the current one.
void set_device(Gemm& gemm, const Tensor& x);

}  // namespace gossamer
