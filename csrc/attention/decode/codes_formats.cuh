// What a kernel over dense codes is told: formats of K and V, how it uses shared memory, numbers of its query rows.
#pragma once

#include "attention/decode/code_operands.cuh"
#include "attention/decode/params.h"

namespace gossamer::cuda {

// Formats of K and V that are known when a kernel is compiled, or only when it is called.
template <class KTiles_, Scales k, class VTiles_, Scales v>
struct FixedFormats {
  using KTiles = KTiles_;
  using VTiles = VTiles_;
  static constexpr Scales k_scales(const DecodeParams&) { return k; }
  static constexpr Scales v_scales(const DecodeParams&) { return v; }
};
struct AnyFormats {
  using KTiles = AnyTiles;
  using VTiles = AnyTiles;
  static __device__ __forceinline__ Scales k_scales(const DecodeParams& w) { return w.main.k.scales; }
  static __device__ __forceinline__ Scales v_scales(const DecodeParams& w) { return w.main.v.scales; }
};

// What the formats of K and V amount to.
template <int D>
struct CodesParams {
  CodeTable<D> k, v;
  float k_middle;           // of codes counted from -2^(b-1): 0.5 in a profile
  bool v_middle;            // whether V has one
  uint32_t k_half, v_half;  // 2^(b-1), a float16 pair: what codes with a minimum are counted from
};

// How the shared memory of a CTA is used: queries in float16 and in their own type, numbers of query rows, then for
// every warp its results and a stage for K and for V. (Two of each were slower: more bytes on their way than DRAM
// needs.)
struct CodesLayout {
  int raw_queries, numbers, warp_begin, warp_bytes;
  int k_stage, v_stage, barriers;  // within a warp's
  int rows;                        // of results
  int total;
};

// Of the queries of a tile, float32 in shared memory.
struct RowNumbers {
  float unit[16];      // what float16 queries are in units of
  float middle[16];    // what K's middle adds to a score
  float group[8][16];  // sums of 32 channels
};

// Where a warp left what it has seen: [rows][D] sums, maxima, sums of weights.
template <int D>
struct WarpResult {
  float* base;
  int rows;

  __device__ __forceinline__ float& out(int row, int channel) const { return base[row * D + channel]; }
  __device__ __forceinline__ float& top(int row) const { return base[rows * D + row]; }
  __device__ __forceinline__ float& sum(int row) const { return base[rows * (D + 1) + row]; }
};

// ---- scales in shared memory -------------------------------------------------------------------

GOSSAMER_INLINE float load_half(uint32_t address) {
  uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address));
  return __half2float(__ushort_as_half(x));
}
// Of tokens g, g + 8, g + 16, g + 24 of a block.
GOSSAMER_INLINE void load_row_scales(const KvFormat& f, uint32_t block, int g, float (&scales)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) scales[i] = load_half(block + f.scales_at + i * 16 + g * 2);
}

}  // namespace gossamer::cuda
