// What one warp does for decode attention over dense codes: scores, weights and sums of the blocks that are its own.
//
// Query rows are columns of both products: K (tokens x channels) times Q^T, then V^T (channels x tokens) times P^T.
// Codes are exact in float16; queries are rounded to it relative to the largest of a row, whatever the type of the
// model.
#pragma once

#include "attention/decode/code_operands.cuh"
#include "attention/decode/codes_state.cuh"
#include "attention/decode/limits.cuh"
#include "attention/decode/staging.cuh"

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
  bool k_floats, v_floats;  // codes are float8
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

// Out of line: rare, and long enough to be in the way of instructions that are not.
static __device__ __noinline__ float capped(float x, float cap) { return cap * kLog2e * tanhf(x); }

template <class Traits>
struct CodesWarp {
  static constexpr int D = Traits::D, Sets = Traits::Sets, Rows = Traits::Rows, Pairs = D / 16;
  using Scores = float[2][Sets][4];  // [tokens 16 m on][rows 8 set on]: rows 2 t, 2 t + 1 of tokens g, then of g + 8
  using Weights = uint32_t[2][Sets][2];  // the same as an operand: tokens 2 t, 2 t + 1, then + 8, of row g

  using Formats = typename Traits::Formats;
  using KTiles = typename Formats::KTiles;
  using VTiles = typename Formats::VTiles;

  const DecodeParams& w;
  const Cut& cut;
  const CodesParams<D>& codes;
  const CodesLayout& shared;
  const RowLimits& limits;
  const RowNumbers& numbers;
  int lane, g, t, warp, warps;
  uint32_t queries;  // the address of this lane's part in shared memory
  Stage stage_k, stage_v;
  int phase = 0;  // of the barriers: blocks so far modulo 2
  bool poisoned;
  uint32_t k_offset = 0, v_offset = 0;  // of blocks to come, one per lane
  float factor[Sets][2], middle[Sets][2];
  CodesState<D, Sets> state;

  __device__ __forceinline__ CodesWarp(const DecodeParams& w, const Cut& cut, const CodesParams<D>& codes,
                                       const CodesLayout& shared, uint8_t* memory, const RowLimits& limits)
      : w(w),
        cut(cut),
        codes(codes),
        shared(shared),
        limits(limits),
        numbers(*reinterpret_cast<const RowNumbers*>(memory + shared.numbers)),
        lane(threadIdx.x % 32),
        g(lane / 4),
        t(lane % 4),
        warp(threadIdx.x / 32),
        warps(blockDim.x / 32) {
    queries = pinned(shared_address(memory) + lane * 4);
    const uint32_t base = pinned(shared_address(memory) + shared.warp_begin + warp * shared.warp_bytes);
    stage_k = {base + shared.k_stage, base + shared.barriers};
    stage_v = {base + shared.v_stage, base + shared.barriers + 8};
    stage_k.init(lane);
    stage_v.init(lane);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

  // ---- blocks on their way -------------------------------------------------------------------------

  // Where this warp's next 32 blocks from `block` on are, one per lane.
  __device__ __forceinline__ void look_up(int sequence, int head, int block, int end) {
    const int mine = block + lane * warps;
    if (mine < end) {
      const DecodePool& pool = w.main;
      const int page = pool.table[sequence * pool.table_stride + cut.by_page(mine)];
      int64_t number = static_cast<int64_t>(page) * w.page_blocks + cut.by_page.modulo(mine);
      if (page < 0 || number >= pool.num_blocks) {
        poisoned = true;
        number = 0;
      }
      k_offset = static_cast<uint32_t>((number * pool.k_block_stride + head * pool.k_head_stride) / kOffsetUnit);
      v_offset = static_cast<uint32_t>((number * pool.v_block_stride + head * pool.v_head_stride) / kOffsetUnit);
    }
    __syncwarp();
  }
  // The block that lane `at` knows of.
  __device__ __forceinline__ void fetch_k(int at) const {
    const uint64_t offset = static_cast<uint64_t>(__shfl_sync(~0u, k_offset, at)) * kOffsetUnit;
    stage_k.fetch(w.main.k_blocks + offset, w.main.k.block_bytes);
  }
  __device__ __forceinline__ void fetch_v(int at) const {
    const uint64_t offset = static_cast<uint64_t>(__shfl_sync(~0u, v_offset, at)) * kOffsetUnit;
    stage_v.fetch(w.main.v_blocks + offset, w.main.v.block_bytes);
  }

  // Starts with blocks block, block + warps, ... below `end`.
  __device__ __forceinline__ void begin_main(int sequence, int head, int block, int end) {
    if (block >= end) return;
    look_up(sequence, head, block, end);
    fetch_k(0);
    fetch_v(0);
  }

  // Goes on with them.
  __device__ __forceinline__ void walk_main(int sequence, int head, int block, int end) {
    int next = 0;  // the lane that knows of the next block
#pragma unroll 1
    for (; block < end; block += warps, phase ^= 1) {
      const bool more = block + warps < end;
      if (more && ++next == 32) {
        next = 0;
        look_up(sequence, head, block + warps, end);
      }
      attend_staged(block, more, next);
    }
    finish_main();
  }

  // ---- scores ----------------------------------------------------------------------------------

  __device__ __forceinline__ uint32_t query(int tile, int set) const {
    return load_shared(queries + (tile * Sets + set) * 128);
  }
  __device__ __forceinline__ uint32_t raw_query(int tile, int set) const {
    return load_shared(queries + shared.raw_queries + (tile * Sets + set) * 128);
  }

  __device__ __forceinline__ void multiply_queries(uint32_t block, Scores& x) const {
    uint32_t cells[4];
    for_pairs<Side::k, KTiles>(codes.k, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        const uint32_t q_low = query(2 * p, set), q_high = query(2 * p + 1, set);
        multiply_k<__half>(x[0][set], low, high, 0, q_low, q_high);
        multiply_k<__half>(x[1][set], low, high, 1, q_low, q_high);
      }
    });
  }

  // With a scale and a minimum per channel: queries are scaled instead.
  __device__ __forceinline__ void multiply_queries_by_channel(uint32_t block, Scores& x) const {
    uint32_t cells[4];
    float constant[Sets][4] = {};
    const uint32_t scales = block + w.main.k.scales_at + t * 4;
    for_pairs<Side::k, KTiles>(codes.k, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
      uint32_t scale[2], centre[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i] = load_shared(scales + (2 * p + i) * 16);
        centre[i] = multiply_add2(scale[i], codes.k_half, load_shared(scales + (2 * p + i) * 16 + 2 * D));
      }
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        const uint32_t q_low = query(2 * p, set), q_high = query(2 * p + 1, set);
        Mma<__half>::dense(constant[set], centre[0], centre[0], centre[1], centre[1], q_low, q_high);
        const uint32_t scaled_low = multiply_half2(q_low, scale[0]), scaled_high = multiply_half2(q_high, scale[1]);
        multiply_k<__half>(x[0][set], low, high, 0, scaled_low, scaled_high);
        multiply_k<__half>(x[1][set], low, high, 1, scaled_low, scaled_high);
      }
    });
#pragma unroll
    for (int i = 0; i < 8 * Sets; ++i) x[i / 4 / Sets][i / 4 % Sets][i % 4] += constant[i / 4 % Sets][i % 4];
  }

  // With a scale and a minimum for 32 channels of a token.
  __device__ __forceinline__ void multiply_queries_by_group(uint32_t block, Scores& x) const {
    uint32_t cells[4];
    Scores part = {};
    for_pairs<Side::k, KTiles>(codes.k, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        const uint32_t q_low = query(2 * p, set), q_high = query(2 * p + 1, set);
        multiply_k<__half>(part[0][set], low, high, 0, q_low, q_high);
        multiply_k<__half>(part[1][set], low, high, 1, q_low, q_high);
      }
      if (p % 2 == 0) return;
      const uint32_t scales = block + w.main.k.scales_at + p / 2 * 128 + g * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = load_half(scales + i * 16), minimum = load_half(scales + i * 16 + 64);
        const float centre = scale * __low2float(as_half2(codes.k_half)) + minimum;
#pragma unroll
        for (int j = 0; j < 2 * Sets; ++j) {
          const int set = j / 2, c = 2 * (i % 2) + j % 2;
          x[i / 2][set][c] += scale * part[i / 2][set][c] + centre * numbers.group[p / 2][8 * set + 2 * t + j % 2];
          part[i / 2][set][c] = 0.0f;
        }
      }
    });
  }

  // Q K^T of a block.
  __device__ __forceinline__ void gemm_qk(uint32_t block, Scores& x) const {
#pragma unroll
    for (int i = 0; i < 8 * Sets; ++i) x[i / 4 / Sets][i / 4 % Sets][i % 4] = middle[i / 4 % Sets][i % 2];
    const Scales scales = Formats::k_scales(w);
    if (scales == Scales::channel) return multiply_queries_by_channel(block, x);
    if (scales == Scales::group) return multiply_queries_by_group(block, x);
    multiply_queries(block, x);
  }

  static __device__ __forceinline__ float load_half(uint32_t address) {
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address));
    return __half2float(__ushort_as_half(x));
  }
  // Of tokens g, g + 8, g + 16, g + 24.
  __device__ __forceinline__ void load_row_scales(const KvFormat& f, uint32_t block, float (&scales)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) scales[i] = load_half(block + f.scales_at + i * 16 + g * 2);
  }

  // Q K^T to scores times log2(e), but for factors by token and row. Where they are capped or masked, factors are
  // multiplied first and become 1.
  __device__ __forceinline__ void finish_scores(Scores& x, float (&of_k)[4], float (&of_row)[Sets][2], bool partly,
                                                Kind kind, int block) const {
    if (!partly && w.softcap == 0.0f) return;
#pragma unroll
    for (int i = 0; i < 8 * Sets; ++i) {
      const int m = i / 4 / Sets, set = i / 4 % Sets, c = i % 4;
      const int token = block * kBlockTokens + 16 * m + 8 * (c / 2) + g;
      x[m][set][c] *= of_k[2 * m + c / 2] * of_row[set][c % 2];
      if (w.softcap > 0.0f) x[m][set][c] = capped(x[m][set][c], w.softcap);
      if (partly && !limits.sees(kind, 8 * set + 2 * t + c % 2, token)) x[m][set][c] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) of_k[i] = 1.0f;
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) of_row[i / 2][i % 2] = 1.0f;
  }

  __device__ __forceinline__ bool seen_by_some(Kind kind, int token) const {
    bool some = false;
#pragma unroll 1
    for (int row = 0; row < Rows; ++row) some |= limits.sees(kind, row, token);
    return some;
  }

  // ---- values ----------------------------------------------------------------------------------

  // Values in a profile are half a step above their codes: adds half the weights.
  __device__ __forceinline__ void add_middle(const Weights& weights) {
    const uint32_t half = 0x38003800u;  // 0.5 twice
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        Mma<__half>::dense(state.centre[set], half, half, half, half, weights[m][set][0], weights[m][set][1]);
      }
    }
  }

  __device__ __forceinline__ void multiply_values(uint32_t block, const Weights& weights) {
    uint32_t cells[4];
    for_pairs<Side::v, VTiles>(codes.v, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        multiply_v<__half>(state.out[p][set], low, high, 0, weights[0][set]);
        multiply_v<__half>(state.out[p][set], low, high, 1, weights[1][set]);
      }
    });
  }

  // Centres of groups times weights: group g is row g of the product.
  __device__ __forceinline__ void add_group_centres(uint32_t block, const Weights& weights) {
    uint32_t centres[4] = {};
    if (g < D / 32) {
      const uint32_t scales = block + w.main.v.scales_at + g * 128 + t * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        centres[i] = multiply_add2(load_shared(scales + i * 16), codes.v_half, load_shared(scales + i * 16 + 64));
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        Mma<__half>::dense(state.centre[set], centres[2 * m], 0, centres[2 * m + 1], 0, weights[m][set][0],
                           weights[m][set][1]);
      }
    }
  }
  // With a scale and a minimum for 32 channels of a token: weights are scaled instead.
  __device__ __forceinline__ void multiply_values_by_group(uint32_t block, const Weights& weights) {
    add_group_centres(block, weights);
    const uint32_t unit = pack2<__half>(state.unit, state.unit);
    uint32_t cells[4];
    Weights scaled;
    for_pairs<Side::v, VTiles>(codes.v, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
      if (p % 2 == 0) {
        const uint32_t scales = block + w.main.v.scales_at + p / 2 * 128 + t * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t scale = multiply_half2(load_shared(scales + i * 16), unit);
#pragma unroll
          for (int set = 0; set < Sets; ++set) {
            scaled[i / 2][set][i % 2] = multiply_half2(weights[i / 2][set][i % 2], scale);
          }
        }
      }
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        multiply_v<__half>(state.out[p][set], low, high, 0, scaled[0][set]);
        multiply_v<__half>(state.out[p][set], low, high, 1, scaled[1][set]);
      }
    });
  }

  // With a scale and a minimum per channel: what a block adds is scaled instead.
  __device__ __forceinline__ void multiply_values_by_channel(uint32_t block, const Weights& weights) {
    const uint32_t one = 0x3c003c00u;
    float total[Sets][4] = {};
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) {
      Mma<__half>::dense(total[i % Sets], one, one, one, one, weights[i / Sets][i % Sets][0],
                         weights[i / Sets][i % Sets][1]);
    }
    uint32_t cells[4];
    const uint32_t scales = block + w.main.v.scales_at + g * 2;
    for_pairs<Side::v, VTiles>(codes.v, block + lane * 16, cells, [&](auto p, auto& low, auto& high) {
      float scale[2], centre[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i] = load_half(scales + (2 * p + i) * 16);
        centre[i] = scale[i] * __low2float(as_half2(codes.v_half)) + load_half(scales + (2 * p + i) * 16 + 2 * D);
      }
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        float part[4] = {};
        multiply_v<__half>(part, low, high, 0, weights[0][set]);
        multiply_v<__half>(part, low, high, 1, weights[1][set]);
#pragma unroll
        for (int c = 0; c < 4; ++c) state.out[p][set][c] += scale[c / 2] * part[c] + centre[c / 2] * total[set][c];
      }
    });
  }

  __device__ __forceinline__ void gemm_pv(uint32_t block, const Weights& weights) {
    const Scales scales = Formats::v_scales(w);
    if (scales == Scales::channel) return multiply_values_by_channel(block, weights);
    if (scales == Scales::group) return multiply_values_by_group(block, weights);
    if (codes.v_middle) add_middle(weights);
    multiply_values(block, weights);
  }

  // Tokens that no row sees: their scales may be anything, as may numbers in 8 bits, and zero times NaN is NaN.
  __device__ __forceinline__ void clear_token(const KvFormat& f, uint32_t block) const {
    const auto clear_half = [](uint32_t at) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(uint16_t{0})); };
    if (f.scales == Scales::row) clear_half(block + f.scales_at + lane * 2);
    for (int i = 0; f.scales == Scales::group && i < D / 16; ++i) clear_half(block + f.scales_at + i * 64 + lane * 2);
    for (int i = 0; f.values == Values::fp8 && i < f.row_bytes / 2; ++i) {
      clear_half(block + i / 8 * kCodeChunk + lane * 16 + i % 8 * 2);
    }
  }

  // The largest scale of V in a block, of this lane's part of it.
  __device__ __forceinline__ float largest_scale(uint32_t block, const float (&by_token)[4]) const {
    if (Formats::v_scales(w) == Scales::row) {
      return fmaxf(fmaxf(fabsf(by_token[0]), fabsf(by_token[1])), fmaxf(fabsf(by_token[2]), fabsf(by_token[3])));
    }
    float most = 0.0f;
    if (Formats::v_scales(w) == Scales::group) {
#pragma unroll
      for (int i = 0; i < D / 32; ++i) most = fmaxf(most, load_half(block + w.main.v.scales_at + i * 128 + lane * 2));
    }
    return most;
  }

  // ---- a block of the main pool ----------------------------------------------------------------

  // Scales of V times the unit, 1 where it has none of its rows.
  __device__ __forceinline__ void scale_weights(uint32_t block, float (&by_token)[4]) {
    const Scales scales = Formats::v_scales(w);
    if (scales != Scales::row && scales != Scales::group) return;
    if (scales == Scales::row) load_row_scales(w.main.v, block, by_token);
    const float most = fmaxf(largest_scale(block, by_token), kLeastScale);
    if (__any_sync(~0u, most * state.unit > kMostUnits)) state.take_unit(most);
    if (scales != Scales::row) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) by_token[i] *= state.unit;
  }

  __device__ __forceinline__ void attend_staged(int block, bool more, int next) {
    const bool partly = block < limits.whole_begin || block >= limits.whole_end;
    stage_k.wait(phase, true);
    Scores x;
    gemm_qk(stage_k.data, x);
    float of_k[4] = {1.0f, 1.0f, 1.0f, 1.0f}, of_v[4] = {1.0f, 1.0f, 1.0f, 1.0f}, of_row[Sets][2];
    if (Formats::k_scales(w) == Scales::row) load_row_scales(w.main.k, stage_k.data, of_k);
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) of_row[i / 2][i % 2] = factor[i / 2][i % 2];
    __syncwarp();
    if (more) fetch_k(next);
    finish_scores(x, of_k, of_row, partly, Kind::main, block);
    stage_v.wait(phase, more);
    if (partly) {
      if (!seen_by_some(Kind::main, block * kBlockTokens + lane)) clear_token(w.main.v, stage_v.data);
      __syncwarp();
    }
    scale_weights(stage_v.data, of_v);
    Weights weights;
    state.template weigh<__half>(x, of_k, of_row, of_v, weights);
    gemm_pv(stage_v.data, weights);
#if __CUDA_ARCH__ >= 900
    if (partly)
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // cleared by this warp, next written by TMA
#endif
    __syncwarp();
    if (more) fetch_v(next);
  }

  // Sums of codes to sums of values; after that the window's can be added.
  __device__ __forceinline__ void finish_main() {
    const float back = 1.0f / state.unit;
    const bool groups = Formats::v_scales(w) == Scales::group;
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
#pragma unroll
      for (int i = 0; i < 4 * Sets; ++i) {
        const int set = i / 4, c = i % 4;
        float& out = state.out[p][set][c];
        if (groups) {
          out = out * back + __shfl_sync(~0u, state.centre[set][c % 2], p / 2 * 4 + t);
        } else {
          const bool any = codes.v.tiles[2 * p + c / 2].mask != 0;
          out = (out + (any ? state.centre[set][c % 2] : 0.0f)) * back;
        }
      }
    }
  }

  // ---- blocks of the dense pool ------------------------------------------------------------------

  // Channels 8 tile + 2 t and + 1 of tokens g, g + 8, ...; zero where no row sees the token.
  static __device__ __forceinline__ void load_plain(const uint8_t* block, int tile, unsigned seen, TileOperand& x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t* from = reinterpret_cast<const uint32_t*>(block + tile * kCodeChunk + s * 128) + lane;
      x[s] = seen >> (8 * s + lane / 4) & 1 ? __ldcs(from) : 0;
    }
  }

  template <class T>
  __device__ __forceinline__ void attend_plain(const uint8_t* k, const uint8_t* v, int block, Kind kind) {
    const unsigned seen = __ballot_sync(~0u, seen_by_some(kind, block * kBlockTokens + lane));
    Scores x = {};
#pragma unroll 2
    for (int p = 0; p < Pairs; ++p) {
      TileOperand low, high;
      load_plain(k, 2 * p, seen, low);
      load_plain(k, 2 * p + 1, seen, high);
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        const uint32_t q_low = raw_query(2 * p, set), q_high = raw_query(2 * p + 1, set);
        multiply_k<T>(x[0][set], low, high, 0, q_low, q_high);
        multiply_k<T>(x[1][set], low, high, 1, q_low, q_high);
      }
    }
    float of_k[4] = {1.0f, 1.0f, 1.0f, 1.0f}, of_row[Sets][2];
    const float of_v[4] = {1.0f, 1.0f, 1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) of_row[i / 2][i % 2] = cut.factor;
    finish_scores(x, of_k, of_row, true, kind, block);
    Weights weights;
    state.template weigh<T>(x, of_k, of_row, of_v, weights);
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
      TileOperand low, high;
      load_plain(v, 2 * p, seen, low);
      load_plain(v, 2 * p + 1, seen, high);
#pragma unroll
      for (int s = 0; s < 4; ++s) low[s] = transposed(low[s]), high[s] = transposed(high[s]);
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        multiply_v<T>(state.out[p][set], low, high, 0, weights[0][set]);
        multiply_v<T>(state.out[p][set], low, high, 1, weights[1][set]);
      }
    }
  }

  __device__ __forceinline__ void attend_dense(int sequence, int head, int block, Kind kind) {
    const DecodePool& pool = w.dense;
    const int page = pool.table[sequence * pool.table_stride + cut.by_page(block)];
    const int64_t number = static_cast<int64_t>(page) * w.page_blocks + cut.by_page.modulo(block);
    if (page < 0 || number >= pool.num_blocks) {
      poisoned = true;
      return;
    }
    const uint8_t* k = pool.k_blocks + number * pool.k_block_stride + head * pool.k_head_stride;
    const uint8_t* v = pool.v_blocks + number * pool.v_block_stride + head * pool.v_head_stride;
    if (w.bf16) return attend_plain<__nv_bfloat16>(k, v, block, kind);
    attend_plain<__half>(k, v, block, kind);
  }

  // ---- queries and results -----------------------------------------------------------------------

  // What a row's numbers make of its scores; after the queries are there.
  __device__ __forceinline__ void load_numbers() {
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) {
      const int row = i / 2 * 8 + 2 * t + i % 2;
      factor[i / 2][i % 2] = cut.factor * numbers.unit[row];
      middle[i / 2][i % 2] = numbers.middle[row];
    }
  }

  __device__ __forceinline__ void store_results(const WarpResult<D>& to) {
    state.add_up();
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) {
      const int set = i / 2, row = 8 * set + 2 * t + i % 2;
      if (row >= to.rows) continue;
      if (g == 0) to.top(row) = state.top[set][i % 2], to.sum(row) = state.sum[set][i % 2];
#pragma unroll
      for (int p = 0; p < Pairs; ++p) {
        to.out(row, 16 * p + g) = state.out[p][set][i % 2];
        to.out(row, 16 * p + 8 + g) = state.out[p][set][2 + i % 2];
      }
    }
  }
};

}  // namespace gossamer::cuda
