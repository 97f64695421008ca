// Tiles of Q, K and V in shared memory, and how tensor cores read and write them.
#pragma once

#include "attention/shared/mma.cuh"

namespace gossamer::cuda {

// Rows of 64 elements, and for D = 128 as many rows behind them with the other half. Chunk c of 16 bytes of row r lies
// at place c ^ (r % 8), so that the 8 rows of a matrix lie in different banks: TMA's 128-byte swizzle. A
// tile begins at a multiple of 1024 bytes.
template <int D, int Rows>
struct Tile {
  static constexpr int kChunks = D / 8, kBytes = Rows * D * 2;
  GOSSAMER_INLINE uint32_t at(int row, int chunk) {
    return chunk / 8 * (Rows * 128) + row * 128 + ((chunk % 8 ^ row % 8) << 4);
  }
  // From the place of chunk 0 or 1 to that of chunk 2 pair + 0 or 1, in the same row.
  GOSSAMER_INLINE uint32_t pair(uint32_t place, int pair) {
    return (place ^ (pair % 4 << 5)) + pair / 4 * (Rows * 128);
  }
};

GOSSAMER_INLINE void load_matrices(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}
GOSSAMER_INLINE void load_transposed(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}
// Four matrices, two below each other and two to the right of those: `place` is a lane's among 16 rows and 2 chunks.
GOSSAMER_INLINE void store_matrices(uint32_t place, const uint32_t (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
#else
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) store_shared(__shfl_sync(~0u, place, 8 * i + g) + 4 * t, x[i]);
#endif
}

}  // namespace gossamer::cuda
