// What one warp does for decode attention: scores, weights and sums of the blocks that are its own.
#pragma once

#include "attention/decode/gemm.cuh"
#include "attention/decode/limits.cuh"
#include "attention/decode/merge.cuh"
#include "attention/decode/staging.cuh"
#include "attention/decode/upcoming.cuh"

namespace gossamer::cuda {

enum class Source {
  sparse16,    // 16-bit values
  sparse,      // 16-bit values, or codes with a scale per row
  sparse_any,  // the same, or codes with scales per channel
  sparse4,     // codes of at most 4 bits
  dense16,     // 16-bit values
  dense4,      // 4-bit codes with scales per channel
};
// Whether blocks are laid out in columns.
constexpr bool in_columns(Source s) { return s == Source::sparse16 || s == Source::sparse || s == Source::sparse_any; }
constexpr bool is_sparse(Source s) { return in_columns(s) || s == Source::sparse4; }

// T: of queries and 16-bit values. Sets: of 4 query rows.
template <class T_, int D_, Source K_, Source V_, int Sets_>
struct DecodeTraits {
  using T = T_;
  static constexpr int D = D_, Sets = Sets_, Rows = 4 * Sets_;
  static constexpr Source K = K_, V = V_;
  // Blocks in columns leave their stages before most of the work: K and V can come together, with one wait, or take
  // turns with one stage, which leaves room for more warps.
  static constexpr bool kTogether = in_columns(K) && in_columns(V);
  static constexpr bool kExpands = is_sparse(K) && is_sparse(V);
  static constexpr bool kFoldedK = K == Source::sparse4, kFoldedV = V == Source::sparse4;
  static constexpr bool kSpread = kFoldedK || kFoldedV;  // there is a table for the bytes of bitmaps
  // 128 registers for 16 warps where the work is what takes time and they suffice, else 168 for 12.
  static constexpr int kMaxWarps = kExpands && Sets == 1 ? 16 : 12;
  // Steps of the queries in registers: as many as fit without spilling. None of them where blocks are expanded: that
  // needs the registers more (8 steps made it 6% slower).
  static constexpr int kHeld = kExpands ? 0 : (K == Source::dense16 ? D / 8 - 2 : D / 32) / (Sets * Sets);
};

// How the shared memory of a CTA is used: the queries, a table, then for every warp columns, stages and so on. Columns
// come first because a bitmap that nobody wrote can have more bits than there are values: what is read then is garbage,
// but lies within the allocation.
struct SharedLayout {
  int table;                                 // for the bytes of bitmaps, if there is one
  int warp_begin, warp_bytes;                // of the first warp, of each
  int k_stage, v_stage, exchange, barriers;  // within a warp's; both stages are the same if K and V take turns
  int channels;  // copies of the scales of channels: they are needed when the next block is on its way to the stage
  bool turns;
  int total;
};

template <class Traits>
struct DecodeWarp {
  using T = typename Traits::T;
  static constexpr int D = Traits::D, Sets = Traits::Sets, Rows = Traits::Rows;
  static constexpr bool kTogether = Traits::kTogether;

  const DecodeParams& w;
  const Cut& cut;
  const SharedLayout& shared;
  const RowLimits& limits;
  Stage stage_k, stage_v;
  uint32_t column;
  uint32_t spread;  // the lane's copy of the table
  Exchange<Sets> exchange;
  int lane, warp, warps;
  int phase = 0;  // of the barriers: blocks so far modulo 2
  bool poisoned;  // a number in the tables or lengths is wrong
  uint4 transpose;
  uint32_t chunks;  // of K, and of V times 2^16: in a register, since a branch on it is in everybody's way
  UpcomingBlocks upcoming;
  Queries<D, Sets, Traits::kHeld> queries;
  Offsets<Sets> offsets;  // of scores of the main pool
  State<D, Sets> state;

  __device__ __forceinline__ DecodeWarp(const DecodeParams& w, const Cut& cut, const SharedLayout& shared,
                                        uint8_t* memory, const RowLimits& limits)
      : w(w),
        cut(cut),
        shared(shared),
        limits(limits),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        warps(blockDim.x / 32) {
    const uint32_t base = pinned(shared_address(memory) + shared.warp_begin + warp * shared.warp_bytes);
    stage_k = {base + shared.k_stage, base + shared.barriers};
    stage_v = {base + shared.v_stage, base + shared.barriers + 8};
    stage_k.init(lane);
    stage_v.init(lane);
    column = base + lane * 4;
    if (Traits::kSpread) spread = pinned(shared_address(memory) + shared.table + lane % 16 * 8);
    exchange.init(base + shared.exchange, lane);
    transpose = transposer(lane);
    chunks = pinned(w.main.k.chunks | w.main.v.chunks << 16);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

  // ---- scores ----------------------------------------------------------------------------------

  __device__ __forceinline__ bool seen_by_some(Kind kind, int token) const {
    bool some = false;
#pragma unroll 1
    for (int row = 0; row < Rows; ++row) some |= limits.sees(kind, row, token);
    return some;
  }

  // Q K^T to scores times log2(e): scaled and capped.
  __device__ __forceinline__ void finish_scores(Scores<Sets>& x) const {
#pragma unroll
    for (int i = 0; i < 4 * Sets; ++i) x.s[i / 4][i % 4] *= cut.factor;
    if (w.softcap > 0.0f) {
#pragma unroll
      for (int i = 0; i < 4 * Sets; ++i) x.s[i / 4][i % 4] = w.softcap * kLog2e * tanhf(x.s[i / 4][i % 4]);
    }
  }
  // For new queries.
  __device__ __forceinline__ void load_queries(uint32_t address) {
    queries.load(address, lane);
    if (Traits::K != Source::sparse4 || w.main.k.scales != Scales::row) return;
    BasePairs<T> base;
    Scores<Sets> x;
    gemm_qk<T>(queries, base, x);
#pragma unroll
    for (int i = 0; i < 2 * Sets; ++i) offsets.rows[i / 2][i % 2] = -x.s[i / 2][i % 2 * 2];
  }
  // By the scales of the rows of a block of K.
  __device__ __forceinline__ void scale_scores(Scores<Sets>& x, uint32_t block) const {
    const uint32_t scales = block + w.main.k.scales_at + (8 * (lane % 4) + lane / 4 % 4) * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = __half2float(__ushort_as_half(load_shared16(scales + 8 * i)));
#pragma unroll
      for (int set = 0; set < Sets; ++set) x.s[set][i] *= scale, x.s[set][2 + i] *= scale;
    }
  }
  // -inf where a row does not see a token.
  __device__ __forceinline__ void mask_scores(Scores<Sets>& x, Kind kind, int block) const {
    const int token = block * kBlockTokens + 8 * (lane % 4) + lane / 4 % 4, row = lane / 16;
#pragma unroll
    for (int set = 0; set < Sets; ++set) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!limits.sees(kind, 4 * set + i / 2 * 2 + row, token + 4 * (i % 2))) x.s[set][i] = -INFINITY;
      }
    }
  }

  // Q K^T to weights. `partly`: not all rows see all tokens of the block.
  __device__ __forceinline__ void weigh(Scores<Sets>& x, bool partly, Kind kind, int block) {
    finish_scores(x);
    if (partly) mask_scores(x, kind, block);
    state.template weigh<T>(x, exchange, lane);
  }

  // ---- blocks of the main pool -------------------------------------------------------------------

  __device__ __forceinline__ void look_up(int sequence, int head, int block, int end) {
    upcoming.look_up(w, cut, sequence, head, block, warps, end, poisoned);
  }
  // The block that lane `at` knows of.
  __device__ __forceinline__ const uint8_t* next_k(int at) const { return upcoming.k(w, at); }
  __device__ __forceinline__ const uint8_t* next_v(int at) const { return upcoming.v(w, at); }
  __device__ __forceinline__ void fetch_k(int at) const { stage_k.fetch(next_k(at), w.main.k.block_bytes); }
  __device__ __forceinline__ void fetch_v(int at) const { stage_v.fetch(next_v(at), w.main.v.block_bytes); }
  __device__ __forceinline__ void fetch_both(int at) const {
    stage_k.fetch_both(next_k(at), w.main.k.block_bytes, stage_v, next_v(at), w.main.v.block_bytes);
  }

  // Whether K and V take turns in one stage.
  __device__ __forceinline__ bool turns() const { return kTogether && shared.turns; }

  // Starts with blocks block, block + warps, ... below `end`.
  __device__ __forceinline__ void begin_main(int sequence, int head, int block, int end) {
    if (block >= end) return;
    look_up(sequence, head, block, end);
    if (kTogether && !turns()) return fetch_both(0);
    fetch_k(0);
    if (!kTogether) fetch_v(0);
  }

  // Goes on with them.
  __device__ __forceinline__ void walk_main(int sequence, int head, int block, int end) {
#pragma unroll 1
    for (int at = 0; block < end; block += warps, phase ^= 1) {
      const bool more = block + warps < end;
      // The lane that knows of the next block.
      const auto next = [&] {
        if (++at == 32) {
          at = 0;
          look_up(sequence, head, block + warps, end);
        }
        return at;
      };
      attend_staged(block, more, at, next);
    }
  }

  // Lays a block out; its stage is free after that.
  template <Source S>
  __device__ __forceinline__ auto open_sparse(const KvFormat& f, int count, uint32_t block, bool valid) const {
    const bool by_channel = S == Source::sparse_any && f.scales == Scales::channel;
    const uint32_t channels = by_channel ? column - lane * 4 + shared.channels : 0;
    SparsePairs<T, D, S == Source::sparse_any> pairs(block, column, channels, lane, valid);
    __syncwarp();  // lanes store each other's columns: all must have read what was there
    if (S == Source::sparse16) {
      fill_column<T, Values::f16>(f, count, block, column, lane);
    } else if (!by_channel) {
      fill_column<T, Column::values>(f, count, block, column, lane);
    } else {
      fill_column<T, Column::codes>(f, count, block, column, lane);
      if (lane < D / 4) store_shared4(channels + lane * 16, load_shared4(block + f.scales_at + lane * 16));
    }
    __syncwarp();
    return pairs;
  }
  // A block that stays in its stage.
  template <Source S, bool IsV>
  __device__ __forceinline__ auto open_staged(const KvFormat& f, int count, uint32_t block, bool valid) const {
    if constexpr (S == Source::sparse4) {
      NibblePairs<T, D, IsV> pairs(f, count, block, column, lane, valid);
      pairs.table = spread;
      if (f.scales != Scales::channel) return pairs;
      pairs.channels = column - lane * 4 + shared.channels;
      __syncwarp();  // all must have read what was there
      if (lane < D / 4)
        store_shared4(pairs.channels + lane * 16, folded(load_shared4(block + f.scales_at + lane * 16)));
      __syncwarp();
      return pairs;
    } else if constexpr (S == Source::dense4) {
      return CodedPairs<T, D>(f, block, lane, valid);
    } else {
      return StagedPairs(block, lane, valid);
    }
  }

  // A block that is on its way. `at`: the lane that knows of it; next(): makes that the next one, if there are more.
  template <class Next>
  __device__ __forceinline__ void attend_staged(int block, bool more, const int& at, const Next& next) {
    const int whole_begin = limits.whole_begin, whole_end = limits.whole_end;  // loaded while the block arrives
    stage_k.wait(phase, !kTogether);
    const bool partly = block < whole_begin || block >= whole_end;
    bool valid = true;
    if (partly) valid = seen_by_some(Kind::main, block * kBlockTokens + lane);
    Scores<Sets> x;
    if constexpr (in_columns(Traits::K)) {
      auto pairs = open_sparse<Traits::K>(w.main.k, chunks & 0xffff, stage_k.data, valid);
      if (turns()) fetch_v(at);
      gemm_qk<T>(queries, pairs, x);
    } else {
      auto pairs = open_staged<Traits::K, false>(w.main.k, chunks & 0xffff, stage_k.data, valid);
      gemm_qk<T>(queries, pairs, x, Traits::K == Source::sparse4 ? offsets : Offsets<Sets>{});
      if (Traits::K == Source::sparse4 && w.main.k.scales == Scales::row) scale_scores(x, stage_k.data);
      __syncwarp();
      if (more) fetch_k(next());
    }
    if constexpr (in_columns(Traits::V)) {
      // V is laid out before the weights are known: that fills the time in which scores become weights.
      if (!kTogether || turns()) stage_v.wait(phase, !kTogether && more);
      auto pairs = open_sparse<Traits::V>(w.main.v, chunks >> 16, stage_v.data, valid);
      if (more) {
        if (!kTogether) {
          fetch_v(at);
        } else if (turns()) {
          fetch_k(next());
        } else {
          fetch_both(next());
        }
      }
      weigh(x, partly, Kind::main, block);
      gemm_pv<T>(pairs, transpose, exchange.weights(), state);
    } else {
      weigh(x, partly, Kind::main, block);
      stage_v.wait(phase, more);
      auto pairs = open_staged<Traits::V, true>(w.main.v, chunks >> 16, stage_v.data, valid);
      gemm_pv<T>(pairs, transpose, exchange.weights(), state);
      __syncwarp();
      if (more) fetch_v(at);
    }
  }

  // ---- blocks of the dense pool ------------------------------------------------------------------

  __device__ __forceinline__ void attend_dense(int sequence, int head, int block, Kind kind) {
    const DecodePool& pool = w.dense;
    const int page = pool.table[sequence * pool.table_stride + cut.by_page(block)];
    const int64_t number = static_cast<int64_t>(page) * w.page_blocks + cut.by_page.modulo(block);
    if (page < 0 || number >= pool.num_blocks) {
      poisoned = true;
      return;
    }
    const bool valid = seen_by_some(kind, block * kBlockTokens + lane);
    GlobalPairs<Traits::kFoldedK> k(pool.k_blocks + number * pool.k_block_stride + head * pool.k_head_stride, lane,
                                    valid);
    GlobalPairs<Traits::kFoldedV> v(pool.v_blocks + number * pool.v_block_stride + head * pool.v_head_stride, lane,
                                    valid);
    Scores<Sets> x;
    gemm_qk<T>(queries, k, x);
    weigh(x, true, kind, block);
    gemm_pv<T>(v, transpose, exchange.weights(), state);
  }
};

}  // namespace gossamer::cuda
