#include "attention/masked/masked_attention_rows.kernel.h"

#include "attention/shared/softmax.kernel.h"
#include "attention/shared/tiles.kernel.h"

namespace gossamer {
namespace {

// One item at work.
struct Walk {
  const MaskedParams& w;
  const MaskedListItem& item;
  MaskedListScratch& scratch;
  int padded_dim;
};

template <class T>
GOSSAMER_INLINE const T* token_at(const MaskedHeads& t, int batch, int head, int64_t token) {
  return static_cast<const T*>(t.data) + batch * t.batch_stride + head * t.head_stride + token * t.token_stride;
}

// A row in float32 times `factor`, padded with zeros.
template <class T>
GOSSAMER_INLINE void copy_row(const Walk& walk, const T* from, float factor, float* to) {
  const int head_dim = walk.w.head_dim;
  int c = 0;
  for (; c + kLanes <= head_dim; c += kLanes) store(to + c, load(from + c) * factor);
  if (c < head_dim) store(to + c, load_partial(from + c, head_dim - c) * factor);
}

// Rows of K or V of up to 32 keys; those that are not there are 0.
template <class T>
GOSSAMER_INLINE void gather(const Walk& walk, const MaskedHeads& t, const int32_t* keys, int count) {
  const int kv_head = walk.item.first_head / (walk.w.heads / walk.w.kv_heads);
  for (int i = 0; i < kBlockTokens; ++i) {
    float* row = walk.scratch.rows + i * walk.padded_dim;
    if (i < count) {
      copy_row(walk, token_at<T>(t, walk.item.batch, kv_head, keys[i]), 1.0f, row);
    } else {
      std::memset(row, 0, walk.padded_dim * sizeof(float));
    }
  }
}

template <class T>
GOSSAMER_INLINE float widened(const T* p) {
  return load_partial(p, 1)[0];
}

GOSSAMER_INLINE float bias_at(const MaskedBias& bias, int64_t at) {
  if (bias.dtype == DType::f32) return static_cast<const float*>(bias.data)[at];
  if (bias.dtype == DType::f16) return widened(static_cast<const f16_t*>(bias.data) + at);
  return widened(static_cast<const bf16_t*>(bias.data) + at);
}

// Capped scores with the bias of their keys.
GOSSAMER_INLINE void add_bias(const Walk& walk, int head, const int32_t* keys, int count, float* scores) {
  const MaskedBias& bias = walk.w.bias;
  const int64_t row = walk.item.batch * bias.batch_stride + head * bias.head_stride +
                      static_cast<int64_t>(walk.item.query) * bias.query_stride;
  if (walk.w.softcap != 0) {
    for (int i = 0; i < kBlockTokens; i += kLanes) store(scores + i, capped(load(scores + i), walk.w.softcap));
  }
  for (int i = 0; i < count; ++i) scores[i] += bias_at(bias, row + keys[i] * bias.key_stride);
}

template <class T>
__attribute__((noinline)) static void attend(const Walk& walk, const int32_t* keys, int count) {
  MaskedListScratch& s = walk.scratch;
  const int heads = walk.item.heads, stride = walk.padded_dim, slices = stride / kLanes;
  gather<T>(walk, walk.w.k, keys, count);
  score_rows(WholeRows{s.rows, stride}, slices, heads, {s.q, stride}, s.terms, s.scores, Ahead{nullptr, 0});
  const bool biased = walk.w.bias.data != nullptr;
  for (int h = 0; h < heads; ++h) {
    float* scores = s.scores + h * kBlockTokens;
    if (biased) add_bias(walk, walk.item.first_head + h, keys, count, scores);
    s.shrink[h] = weigh(scores, 0, count, biased ? 0.0f : walk.w.softcap, {s.maxima + h, s.totals + h * kLanes});
  }
  gather<T>(walk, walk.w.v, keys, count);
  value_rows(WholeRows{s.rows, stride}, slices, heads, {s.scores, s.shrink, 0, count, Ahead{nullptr, 0}},
             {s.sums, stride});
}

template <class T>
GOSSAMER_INLINE void finish(const Walk& walk) {
  const MaskedParams& w = walk.w;
  for (int h = 0; h < walk.item.heads; ++h) {
    const int64_t row =
        (static_cast<int64_t>(walk.item.batch) * w.heads + walk.item.first_head + h) * w.q_len + walk.item.query;
    const float total = sum(load(walk.scratch.totals + h * kLanes));
    const float factor = total == 0 ? 0 : 1 / total;
    const float* sums = walk.scratch.sums + h * walk.padded_dim;
    T* out = static_cast<T*>(w.out) + row * w.head_dim;
    int c = 0;
    for (; c + kLanes <= w.head_dim; c += kLanes) store(out + c, load(sums + c) * factor);
    if (c < w.head_dim) store_partial(out + c, load(sums + c) * factor, w.head_dim - c);
    w.lse[row] = total == 0 ? kNothing : offset_of(walk.scratch.maxima[h]) + __builtin_logf(total);
  }
}

template <class T>
void list(const MaskedParams& w, const MaskedLists& lists, const MaskedListItem& item, MaskedListScratch& scratch) {
  const Walk walk{w, item, scratch, (w.head_dim + kLanes - 1) / kLanes * kLanes};
  for (int h = 0; h < item.heads; ++h) {
    copy_row(walk, token_at<T>(w.q, item.batch, item.first_head + h, item.query), w.scale,
             scratch.q + h * walk.padded_dim);
    scratch.maxima[h] = kNothing;
    store(scratch.totals + h * kLanes, F32{});
  }
  std::memset(scratch.sums, 0, item.heads * walk.padded_dim * sizeof(float));
  const int64_t group =
      static_cast<int64_t>(w.map.batch == 1 ? 0 : item.batch) * w.map.heads + (w.map.heads == 1 ? 0 : item.first_head);
  const int64_t row = group * w.q_len + item.query;
  for (int32_t i = lists.offsets[row]; i < lists.offsets[row + 1]; i += kBlockTokens) {
    const int left = lists.offsets[row + 1] - i;
    attend<T>(walk, lists.keys + i, left < kBlockTokens ? left : kBlockTokens);
  }
  finish<T>(walk);
}

}  // namespace

namespace GOSSAMER_ISA {

void masked_list(const MaskedParams& work, DType dtype, const MaskedLists& lists, const MaskedListItem& item,
                 MaskedListScratch& scratch) {
  if (dtype == DType::f32) list<float>(work, lists, item, scratch);
  if (dtype == DType::f16) list<f16_t>(work, lists, item, scratch);
  if (dtype == DType::bf16) list<bf16_t>(work, lists, item, scratch);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
