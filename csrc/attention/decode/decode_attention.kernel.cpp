#include "attention/decode/decode_attention.kernel.h"

#include "attention/decode/code_steps.kernel.h"
#include "attention/decode/expand.kernel.h"
#include "attention/shared/softmax.kernel.h"

namespace gossamer {
namespace {

// The tokens of a block that queries see in one of the pools.
struct Seen {
  int first_query, queries;
  int begin[kMaxQueryLength], end[kMaxQueryLength];  // of query first_query + i
  int least, most;                                   // begin and end of all of them together
};

GOSSAMER_INLINE int larger(int a, int b) { return a > b ? a : b; }
GOSSAMER_INLINE int smaller(int a, int b) { return a < b ? a : b; }

GOSSAMER_INLINE Seen seen_tokens(const DecodeParams& w, int length, int block, bool dense) {
  Seen seen{0, 0, {}, {}, kBlockTokens, 0};
  const int64_t start = static_cast<int64_t>(block) * kBlockTokens;
  for (int j = 0; j < w.q_len; ++j) {
    const int64_t position = static_cast<int64_t>(length) - w.q_len + j;
    if (position < start) continue;
    const bool is_dense =
        w.dense.table && (block >= position / kBlockTokens - w.window_blocks || block < w.sink_blocks);
    const int64_t low = w.sliding ? position - w.sliding + 1 - start : 0;
    if (is_dense != dense || low >= kBlockTokens) continue;
    if (seen.queries == 0) seen.first_query = j;
    const int i = seen.queries++;  // queries that see a block in the same pool are neighbours
    seen.begin[i] = low > 0 ? static_cast<int>(low) : 0;
    seen.end[i] = position + 1 - start < kBlockTokens ? static_cast<int>(position + 1 - start) : kBlockTokens;
    seen.least = smaller(seen.least, seen.begin[i]);
    seen.most = larger(seen.most, seen.end[i]);
  }
  return seen;
}

// One item at work.
struct Walk {
  const DecodeParams& w;
  DecodeScratch& scratch;
  FloatRows q, sums;
  float* maxima;
  int kv_head, slices, padded_dim;
};

template <class T>
GOSSAMER_INLINE void load_queries(const Walk& walk, int sequence) {
  const DecodeParams& w = walk.w;
  for (int r = 0; r < w.q_len * w.group; ++r) {
    const int head = walk.kv_head * w.group + r % w.group;
    const T* q = static_cast<const T*>(w.q) + sequence * w.q_seq_stride + r / w.group * w.q_token_stride +
                 head * w.q_head_stride;
    for (int c = 0; c < walk.padded_dim; c += kLanes) {
      const int left = w.head_dim - c;
      const F32 x = left >= kLanes ? load(q + c) : left > 0 ? load_partial(q + c, left) : F32{};
      store(walk.q[r] + c, x * w.scale);
    }
  }
}

// Calls `function` with the rows of a block: spread out on the way where few queries need them, else beforehand.
template <class F>
GOSSAMER_INLINE void with_rows(const Walk& walk, const KvFormat& f, const uint8_t* block, int rows, const F& function) {
  DecodeScratch& scratch = walk.scratch;
#if GOSSAMER_LANES > 4
  if (f.sparse && f.scales != Scales::channel && f.head_dim % kLanes == 0 && rows <= kTileRows) {
    const int stride = f.chunks * kChunk;
    load_block(f, block, scratch.entries, stride);
    return function(SparseRows{block, scratch.entries, f.head_dim / 8, stride});
  }
#else
  (void)rows;
#endif
  load_rows(f, block, {scratch.rows, scratch.entries}, walk.padded_dim);
  function(WholeRows{scratch.rows, walk.padded_dim});
}

GOSSAMER_INLINE const uint8_t* k_block(const Walk& walk, const DecodePool& pool, int64_t at) {
  return pool.k_blocks + at * pool.k_block_stride + walk.kv_head * pool.k_head_stride;
}

GOSSAMER_INLINE const uint8_t* v_block(const Walk& walk, const DecodePool& pool, int64_t at) {
  return pool.v_blocks + at * pool.v_block_stride + walk.kv_head * pool.v_head_stride;
}

GOSSAMER_INLINE int64_t find_block(const DecodeParams& w, const DecodePool& pool, int sequence, int block) {
  const int64_t page = pool.table[sequence * pool.table_stride + block / w.page_blocks];
  return page * w.page_blocks + block % w.page_blocks;
}

GOSSAMER_INLINE void score_block(const Walk& walk, const KvFormat& f, const uint8_t* block, int first, int rows,
                                 const Ahead& ahead) {
  DecodeScratch& scratch = walk.scratch;
  const FloatRows q{walk.q[first], walk.q.stride};
  if (f.has_codes()) {
    const CodeStep step{f, scratch.codes.k_planes, scratch.codes, block, first, rows};
    return score_codes(step, q, scratch.terms, scratch.scores, ahead);
  }
  with_rows(walk, f, block, rows, [&](const auto& keys) {
    score_rows(keys, walk.slices, rows, q, scratch.terms, scratch.scores, ahead);
  });
}

GOSSAMER_INLINE void add_block(const Walk& walk, const KvFormat& f, const uint8_t* block, int first, int rows,
                               const Weights& weights) {
  DecodeScratch& scratch = walk.scratch;
  const FloatRows sums{walk.sums[first], walk.sums.stride};
  if (f.has_codes()) {
    const CodeStep step{f, scratch.codes.v_planes, scratch.codes, block, first, rows};
    return add_codes(step, scratch.scores, weights, sums);
  }
  with_rows(walk, f, block, rows, [&](const auto& values) { value_rows(values, walk.slices, rows, weights, sums); });
  if (!walk.w.main.v.has_codes()) return;
  const int lanes = scratch.codes.v_planes.lanes();  // a block of the window: sums of codes shrink too
  for (int r = 0; r < rows; ++r) {
    if (weights.shrink[r] != 1) multiply_by(scratch.codes.sums + (first + r) * lanes, weights.shrink[r], lanes);
  }
}

// Block `at` of a pool; `next` is the one that probably follows.
__attribute__((noinline)) static void attend(const Walk& walk, const DecodePool& pool, const Seen& seen, int64_t at,
                                             int64_t next) {
  const DecodeParams& w = walk.w;
  DecodeScratch& scratch = walk.scratch;
  const int first = seen.first_query * w.group, rows = seen.queries * w.group;
  const Ahead next_k{k_block(walk, pool, next), pool.k.block_bytes / kBlockTokens};
  const Ahead next_v{v_block(walk, pool, next), pool.v.block_bytes / kBlockTokens};
  score_block(walk, pool.k, k_block(walk, pool, at), first, rows, next_k);
  for (int r = 0; r < rows; ++r) {
    const int i = r / w.group;
    scratch.shrink[r] = weigh(scratch.scores + r * kBlockTokens, seen.begin[i], seen.end[i], w.softcap,
                              {walk.maxima + first + r, scratch.totals + (first + r) * kLanes});
  }
  add_block(walk, pool.v, v_block(walk, pool, at), first, rows,
            {scratch.scores, scratch.shrink, seen.least, seen.most, next_v});
}

// Queries in, sums to zero.
template <class T>
GOSSAMER_INLINE void start(const Walk& walk, const DecodePartial& shape, int sequence) {
  DecodeScratch& scratch = walk.scratch;
  CodeScratch& codes = scratch.codes;
  load_queries<T>(walk, sequence);
  if (walk.w.main.k.has_codes()) set_code_queries(walk.w.main.k, walk.q, shape.rows, codes);
  if (walk.w.main.v.has_codes()) std::memset(codes.sums, 0, shape.rows * codes.v_planes.lanes() * sizeof(float));
  std::memset(walk.sums.data, 0, shape.rows * shape.padded_dim * sizeof(float));
  std::memset(scratch.totals, 0, shape.rows * kLanes * sizeof(float));
  for (int r = 0; r < shape.rows; ++r) walk.maxima[r] = kNothing;
}

template <class T>
void blocks_of_item(const DecodeParams& w, const DecodeItem& item, DecodeScratch& scratch, float* partial) {
  const DecodePartial shape = decode_partial(w);
  const Walk walk{w,
                  scratch,
                  {scratch.q, shape.padded_dim},
                  {partial, shape.padded_dim},
                  partial + shape.rows * shape.padded_dim,
                  item.kv_head,
                  (w.head_dim + kLanes - 1) / kLanes,
                  shape.padded_dim};
  start<T>(walk, shape, item.sequence);
  for (int block = item.begin; block < item.end; ++block) {
    const DecodePool* const pools[2] = {&w.main, &w.dense};
    for (const DecodePool* pool : pools) {
      if (pool->table == nullptr) continue;
      const Seen seen = seen_tokens(w, w.seq_lens[item.sequence], block, pool == &w.dense);
      if (seen.queries == 0) continue;
      const int64_t at = find_block(w, *pool, item.sequence, block);
      const int64_t next = find_block(w, *pool, item.sequence, smaller(block + 1, item.end - 1));
      attend(walk, *pool, seen, at, next >= 0 && next < pool->num_blocks ? next : at);
    }
  }
  if (w.main.v.has_codes()) add_code_sums(scratch.codes, shape.rows, walk.sums);
  for (int r = 0; r < shape.rows; ++r) walk.maxima[shape.rows + r] = sum(load(scratch.totals + r * kLanes));
}

// Puts the partial results of row r together: `sums` becomes the mean of its values; returns their lse.
GOSSAMER_INLINE float merge_row(const DecodePartial& shape, int r, const float* partials, int count, float* sums) {
  const auto maximum_of = [&](int i) { return partials + i * shape.floats + shape.rows * shape.padded_dim + r; };
  float maximum = kNothing, total = 0;
  for (int i = 0; i < count; ++i) maximum = *maximum_of(i) > maximum ? *maximum_of(i) : maximum;
  for (int c = 0; c < shape.padded_dim; ++c) sums[c] = 0;
  for (int i = 0; i < count; ++i) {
    const float shrink = shrink_by(*maximum_of(i), maximum);
    const float* part = partials + i * shape.floats + r * shape.padded_dim;
    for (int c = 0; c < shape.padded_dim; c += kLanes) store(sums + c, load(sums + c) + load(part + c) * shrink);
    total += maximum_of(i)[shape.rows] * shrink;
  }
  if (total == 0) return kNothing;  // sums are zeros
  for (int c = 0; c < shape.padded_dim; ++c) sums[c] /= total;
  return offset_of(maximum) + __builtin_logf(total);
}

template <class T>
void merge(const DecodeParams& w, int sequence, int kv_head, const float* partials, int count) {
  const DecodePartial shape = decode_partial(w);
  alignas(64) float sums[kMaxHeadDim];
  for (int r = 0; r < shape.rows; ++r) {
    const int head = kv_head * w.group + r % w.group;
    const int64_t row = (static_cast<int64_t>(sequence) * w.q_len + r / w.group) * w.kv_heads * w.group + head;
    w.lse[row] = merge_row(shape, r, partials, count, sums);
    T* out = static_cast<T*>(w.out) + row * w.head_dim;
    int c = 0;
    for (; c + kLanes <= w.head_dim; c += kLanes) store(out + c, load(sums + c));
    if (c < w.head_dim) store_partial(out + c, load(sums + c), w.head_dim - c);
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void decode_blocks(const DecodeParams& work, DType dtype, const DecodeItem& item, DecodeScratch& scratch,
                   float* partial) {
  if (dtype == DType::f32) blocks_of_item<float>(work, item, scratch, partial);
  if (dtype == DType::f16) blocks_of_item<f16_t>(work, item, scratch, partial);
  if (dtype == DType::bf16) blocks_of_item<bf16_t>(work, item, scratch, partial);
}

void decode_merge(const DecodeParams& work, DType dtype, int sequence, int kv_head, const float* partials, int count) {
  if (dtype == DType::f32) merge<float>(work, sequence, kv_head, partials, count);
  if (dtype == DType::f16) merge<f16_t>(work, sequence, kv_head, partials, count);
  if (dtype == DType::bf16) merge<bf16_t>(work, sequence, kv_head, partials, count);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
