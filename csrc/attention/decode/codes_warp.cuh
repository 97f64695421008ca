// What one warp does for decode attention over dense codes: scores, weights and sums of the blocks that are its own.
//
// Query rows are columns of both products: K (tokens x channels) times Q^T, then V^T (channels x tokens) times P^T.
// Codes are exact in float16; queries are rounded to it relative to the largest of a row, whatever the type of the
// model.
#pragma once

#include "attention/decode/codes_keys.cuh"
#include "attention/decode/codes_values.cuh"
#include "attention/decode/limits.cuh"
#include "attention/decode/staging.cuh"
#include "attention/decode/upcoming.cuh"

namespace gossamer::cuda {

// Out of line: rare, and long enough to be in the way of instructions that are not.
static __device__ __noinline__ float capped(float x, float cap) { return cap * kLog2e * tanhf(x); }

template <class Traits>
struct CodesWarp {
  static constexpr int D = Traits::D, Sets = Traits::Sets, Rows = Traits::Rows, Pairs = D / 16;
  using Scores = typename CodesKeys<Traits>::Scores;
  using Weights = typename CodesValues<Traits>::Weights;

  const DecodeParams& w;
  const Cut& cut;
  const CodesLayout& shared;
  const RowLimits& limits;
  int lane, g, t, warp, warps;
  CodesKeys<Traits> keys;
  CodesValues<Traits> values;
  Stage stage_k, stage_v;
  int phase = 0;  // of the barriers: blocks so far modulo 2
  bool poisoned;
  UpcomingBlocks upcoming;
  float factor[Sets][2];

  __device__ __forceinline__ CodesWarp(const DecodeParams& w, const Cut& cut, const CodesParams<D>& codes,
                                       const CodesLayout& shared, uint8_t* memory, const RowLimits& limits)
      : w(w),
        cut(cut),
        shared(shared),
        limits(limits),
        lane(threadIdx.x % 32),
        g(lane / 4),
        t(lane % 4),
        warp(threadIdx.x / 32),
        warps(blockDim.x / 32),
        keys{w,
             codes,
             *reinterpret_cast<const RowNumbers*>(memory + shared.numbers),
             lane,
             g,
             t,
             pinned(shared_address(memory) + lane * 4)},
        values{w, codes, lane, g, t} {
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

  __device__ __forceinline__ void look_up(int sequence, int head, int block, int end) {
    upcoming.look_up(w, cut, sequence, head, block, warps, end, poisoned);
  }
  // The block that lane `at` knows of.
  __device__ __forceinline__ void fetch_k(int at) const { stage_k.fetch(upcoming.k(w, at), w.main.k.block_bytes); }
  __device__ __forceinline__ void fetch_v(int at) const { stage_v.fetch(upcoming.v(w, at), w.main.v.block_bytes); }

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
    values.finish();
  }

  // ---- scores ----------------------------------------------------------------------------------

  __device__ __forceinline__ uint32_t raw_query(int tile, int set) const {
    return load_shared(keys.queries + shared.raw_queries + (tile * Sets + set) * 128);
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

  // ---- a block of the main pool ----------------------------------------------------------------

  __device__ __forceinline__ void attend_staged(int block, bool more, int next) {
    const bool partly = block < limits.whole_begin || block >= limits.whole_end;
    stage_k.wait(phase, true);
    Scores x;
    keys.gemm_qk(stage_k.data, x);
    float of_k[4] = {1.0f, 1.0f, 1.0f, 1.0f}, of_v[4] = {1.0f, 1.0f, 1.0f, 1.0f}, of_row[Sets][2];
    if (Traits::Formats::k_scales(w) == Scales::row) load_row_scales(w.main.k, stage_k.data, g, of_k);
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) of_row[i / 2][i % 2] = factor[i / 2][i % 2];
    __syncwarp();
    if (more) fetch_k(next);
    finish_scores(x, of_k, of_row, partly, Kind::main, block);
    stage_v.wait(phase, more);
    if (partly) {
      if (!seen_by_some(Kind::main, block * kBlockTokens + lane)) values.clear_token(w.main.v, stage_v.data);
      __syncwarp();
    }
    values.scale_weights(stage_v.data, of_v);
    Weights weights;
    values.state.template weigh<__half>(x, of_k, of_row, of_v, weights);
    values.gemm_pv(stage_v.data, weights);
#if __CUDA_ARCH__ >= 900
    if (partly)
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // cleared by this warp, next written by TMA
#endif
    __syncwarp();
    if (more) fetch_v(next);
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
    values.state.template weigh<T>(x, of_k, of_row, of_v, weights);
#pragma unroll
    for (int p = 0; p < Pairs; ++p) {
      TileOperand low, high;
      load_plain(v, 2 * p, seen, low);
      load_plain(v, 2 * p + 1, seen, high);
#pragma unroll
      for (int s = 0; s < 4; ++s) low[s] = transposed(low[s]), high[s] = transposed(high[s]);
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        multiply_v<T>(values.state.out[p][set], low, high, 0, weights[0][set]);
        multiply_v<T>(values.state.out[p][set], low, high, 1, weights[1][set]);
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
      factor[i / 2][i % 2] = cut.factor * keys.numbers.unit[row];
      keys.middle[i / 2][i % 2] = keys.numbers.middle[row];
    }
  }

  __device__ __forceinline__ void store_results(const WarpResult<D>& to) {
    CodesState<D, Sets>& state = values.state;
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
