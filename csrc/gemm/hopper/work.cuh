// One GEMM C = epilogue(A B^T) for the kernel in kernel.cuh, or two of them, gate and up, whose sums the epilogue makes
// one result of: where the matrices lie, and the order of tiles.
#pragma once

#include <cuda.h>

#include "gossamer/common.h"

namespace gossamer::cuda {

// How warpgroups share the work of a CTA.
enum class Sharing {
  tiles,       // each has tiles of 128 x 128 of its own, and finishes one while the other multiplies
  wide_tiles,  // the same with tiles of 128 x 192: fewer bytes per multiplication, but fewer tiles
  rows,        // each has half of the rows of a tile of 256 x 192: fewest bytes, and nobody multiplies at its end
  blocked,     // as `rows` with tiles of 128 x 128, of which every 128 elements along k have scales of their own
};

struct GemmWork {
  CUtensorMap a, b, c;  // [m, k], [n, k], [m, n]; boxes as GemmTraits says. Of two GEMMs, b is gate.
  int m, n, k_steps;
  int tile_rows, tile_columns;  // of the whole grid; a row is of a pair of CTAs
  const void* bias;             // [n], of the type of C; of gate and up [2 n]; or null
  const float* row_scale;       // [m] or [m, k / 128]; or null
  const float* column_scale;    // [n] or [n / 128, k / 128]; or null
  int row_step, column_step;    // from one scale to the next: 0 where all have the same one
  CUtensorMap up;               // [n, k], where there are two GEMMs
};

// Tiles in groups of kGroup rows, column by column: CTAs that run at the same time then share what the L2 holds.
template <int kGroup>
struct TileOrder {
  int row, column;

  __device__ __forceinline__ TileOrder(const GemmWork& w, int number) {
    const int group = number / (kGroup * w.tile_columns), first = group * kGroup;
    const int height = min(kGroup, w.tile_rows - first), place = number - first * w.tile_columns;
    column = place / height;
    row = first + place - column * height;
  }
};

}  // namespace gossamer::cuda
