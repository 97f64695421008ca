// A tile: 32 rows of one head in shared memory, one warp's work.
#pragma once

#include <type_traits>

#include "gossamer/cuda/launch.h"
#include "kv/kv_format.h"

namespace gossamer::cuda {

constexpr int kMaxWarps = 4;                   // tiles per thread block, unless they are too large:
constexpr int kSharedBytes = 96 * 1024;        // at least two thread blocks per multiprocessor from sm_90 on
constexpr int kStaticSharedBytes = 48 * 1024;  // more must be asked for

// Lane i owns row i. Rows are an odd number of 16-byte pieces apart, so that 8 lanes which touch the same
// piece of their rows meet 8 different groups of banks.
template <class T>
struct Tile {
  static constexpr int kPiece = 16 / sizeof(T);  // elements
  uint8_t* memory;
  int stride;  // bytes from row to row

  static __host__ __device__ constexpr int row_bytes(int head_dim) {
    const int pieces = head_dim * static_cast<int>(sizeof(T)) / 16;
    return (pieces + (pieces % 2 == 0 ? 1 : 0)) * 16;
  }
  __device__ __forceinline__ T* row(int r) const { return reinterpret_cast<T*>(memory + r * stride); }

  // From rows in global memory; consecutive lanes take consecutive pieces.
  __device__ __forceinline__ void load(const T* x, int64_t row_stride, int rows, int head_dim) const {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    for_pieces(row_stride, rows, head_dim, [&](int64_t element, int at) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(x + element));
    });
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
  }

  __device__ __forceinline__ void store(T* x, int64_t row_stride, int rows, int head_dim) const {
    __syncwarp();
    for_pieces(row_stride, rows, head_dim, [&](int64_t element, int at) {
      *reinterpret_cast<uint4*>(x + element) = *reinterpret_cast<const uint4*>(memory + at);
    });
  }

 private:
  // Calls visit(element of x, byte of memory) for the lane's pieces: every 32nd of them.
  template <class Visit>
  __device__ __forceinline__ void for_pieces(int64_t row_stride, int rows, int head_dim, const Visit& visit) const {
    const int pieces = head_dim / kPiece;
    const int row_step = 32 / pieces, piece_step = 32 % pieces;
    int r = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    int64_t element = r * row_stride + piece * kPiece;
    int at = r * stride + piece * 16;
    const int64_t element_step = row_step * row_stride + piece_step * kPiece, element_wrap = row_stride - head_dim;
    const int step = row_step * stride + piece_step * 16, wrap = stride - pieces * 16;
#pragma unroll 4
    while (r < rows) {
      visit(element, at);
      r += row_step;
      piece += piece_step;
      element += element_step;
      at += step;
      if (piece >= pieces) {
        piece -= pieces;
        ++r;
        element += element_wrap;
        at += wrap;
      }
    }
  }
};

// Which rows a warp has: `rows` of them from row `first` on, of one head. False when there are none.
struct TileRows {
  int64_t first;
  int head, rows;

  template <class Work>
  __device__ __forceinline__ bool find(const Work& w) {
    const unsigned index = blockIdx.x * blockDim.y + threadIdx.y;
    first = static_cast<int64_t>(index / w.heads) * kBlockTokens;
    head = index % w.heads;
    rows = static_cast<int>(min(static_cast<int64_t>(kBlockTokens), w.rows - first));
    return first < w.rows;
  }
};

// Where a slot is; meaningless for a negative one.
template <class Byte>
struct Place {
  Byte* block;
  int token;

  template <class Work>
  __device__ __forceinline__ Place(const Work& w, int64_t slot, int head)
      : block(w.blocks + slot / kBlockTokens * w.block_stride + head * w.block_head_stride),
        token(static_cast<int>(slot % kBlockTokens)) {}
};

// Calls `launch` with the number of 32-bit words of a row's bitmap, as a constant: 1, 2, 3, 4 or 8.
template <class Launch>
void for_mask_words(int head_dim, const Launch& launch) {
  const int words = (head_dim + 31) / 32;
  if (words == 1) return launch(std::integral_constant<int, 1>{});
  if (words == 2) return launch(std::integral_constant<int, 2>{});
  if (words == 3) return launch(std::integral_constant<int, 3>{});
  if (words == 4) return launch(std::integral_constant<int, 4>{});
  return launch(std::integral_constant<int, 8>{});
}

// One warp, with `warp_bytes` of shared memory, for each tile of work.rows x work.heads.
template <class Work>
void launch_tiles(const char* op, void (*kernel)(Work), const Work& work, int warp_bytes, cudaStream_t stream) {
  const int64_t tiles = (work.rows + kBlockTokens - 1) / kBlockTokens * work.heads;
  STD_TORCH_CHECK(tiles < (int64_t{1} << 31), op, ": too many rows: ", work.rows);
  int warps = kMaxWarps;
  while (warps > 1 && warps * warp_bytes > kSharedBytes) warps /= 2;
  const int bytes = warps * warp_bytes;
  if (bytes > kStaticSharedBytes) {
    // Always the same limit: it belongs to the kernel, and another thread may be launching it too.
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    STD_TORCH_CHECK(error == cudaSuccess, op, ": ", cudaGetErrorString(error));
  }
  const unsigned blocks = static_cast<unsigned>((tiles + warps - 1) / warps);
  kernel<<<blocks, dim3(32, warps), bytes, stream>>>(work);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace gossamer::cuda
