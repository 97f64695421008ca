#include "attention/masked/masked_attention.kernel.h"

#include "attention/masked/softmax.kernel.h"

namespace gossamer {
namespace {

GOSSAMER_INLINE int smaller(int a, int b) { return a < b ? a : b; }

// 32 keys of a tile.
struct Panel {
  const float *keys, *values;
  const int32_t* words;  // of the tile's first query, or null where all keys are seen
  int first_key;
  uint32_t valid;  // bits of the keys that exist
};

// One item at work.
struct Walk {
  const MaskedParams& w;
  const MaskedItem& item;
  MaskedScratch& scratch;
  const float *keys, *values;
  int rows, strips;  // rows that exist, in strips
  bool plain;        // scores need no more than a factor
};

template <class T>
GOSSAMER_INLINE const T* query_row(const Walk& walk, int r) {
  const MaskedHeads& q = walk.w.q;
  const int64_t token = static_cast<int64_t>(walk.item.row) * walk.w.map.tile_q + r;
  return static_cast<const T*>(q.data) + walk.item.batch * q.batch_stride + walk.item.head * q.head_stride +
         token * q.token_stride;
}

// Queries, scaled, and sums of nothing; rows that only fill up the last strip are 0.
template <class T>
GOSSAMER_INLINE void start(const Walk& walk) {
  MaskedScratch& scratch = walk.scratch;
  const int head_dim = walk.w.head_dim;
  const float factor = walk.plain ? walk.w.scale * kLog2E : walk.w.scale;
  for (int r = 0; r < walk.strips * kStripRows; ++r) {
    float *q = scratch.q + r * kMaskedRowFloats, *sums = scratch.sums + r * kMaskedRowFloats;
    for (int c = 0; c < head_dim; c += kLanes) {
      const F32 x = r < walk.rows ? load_some(query_row<T>(walk, r) + c, head_dim - c) * factor : F32{};
      store(q + c, x);
      store(sums + c, F32{});
    }
    for (int c = head_dim / kLanes * kLanes; c < (head_dim + 15) / 16 * 16; c += kLanes) store(sums + c, F32{});
    store(scratch.totals + r * kLanes, F32{});
    scratch.maxima[r] = kNothing;
  }
}

// What the queries of a strip see of the panels; those that none of them sees are left out.
struct Visible {
  const Panel* panel[kMaskedGroupPanels];
  StripMask mask;
  int count;
};

GOSSAMER_INLINE void look(const Panel* panels, int count, int words_per_row, int strip, Visible& visible) {
  visible.count = 0;
  for (int i = 0; i < count; ++i) {
    const Panel& panel = panels[i];
    const int at = visible.count;
    uint32_t any = 0, all = ~0u;
    if (panel.words) {
      const int32_t* words = panel.words + strip * kStripRows * words_per_row;
      for (int r = 0; r < kStripRows; ++r) {
        const uint32_t word = static_cast<uint32_t>(words[r * words_per_row]) & panel.valid;
        visible.mask.words[r][at] = word;
        any |= word;
        all &= word;
      }
      if (any == 0) continue;
    }
    visible.mask.partial[at] = all != ~0u;
    visible.panel[at] = &panel;
    ++visible.count;
  }
}

GOSSAMER_INLINE void adjust_strip(const Walk& walk, const Visible& visible, int strip) {
  const MaskedParams& w = walk.w;
  const int first = walk.item.row * w.map.tile_q;
  for (int r = strip * kStripRows; r < smaller((strip + 1) * kStripRows, walk.rows); ++r) {
    const int64_t bias_row =
        walk.item.batch * w.bias.batch_stride + walk.item.head * w.bias.head_stride + (first + r) * w.bias.query_stride;
    for (int i = 0; i < visible.count; ++i) {
      const int key = visible.panel[i]->first_key;
      float* scores = walk.scratch.scores + (r % kStripRows) * kMaskedScoreFloats + i * kPanelKeys;
      adjust(w, bias_row + key * w.bias.key_stride, smaller(kPanelKeys, w.kv_len - key), scores);
    }
  }
}

// A few panels for all queries.
__attribute__((noinline)) static void attend(const Walk& walk, const Panel* panels, int count) {
  MaskedScratch& scratch = walk.scratch;
  const int head_dim = walk.w.head_dim, words_per_row = walk.w.map.tile_k / kWordKeys;
  for (int strip = 0; strip < walk.strips; ++strip) {
    Visible visible;
    look(panels, count, words_per_row, strip, visible);
    if (visible.count == 0) continue;
    const int row = strip * kStripRows;
    ValuePanels values;
    values.count = visible.count;
    for (int i = 0; i < visible.count; ++i) {
      values.panel[i] = visible.panel[i]->values;
      score_panel(scratch.q + row * kMaskedRowFloats, visible.panel[i]->keys, head_dim,
                  scratch.scores + i * kPanelKeys);
    }
    if (!walk.plain) adjust_strip(walk, visible, strip);
    float shrink[kMaskedStripRows];
    weigh_strip(scratch.scores, visible.mask, visible.count, {scratch.maxima + row, scratch.totals + row * kLanes},
                shrink);
    add_values(scratch.scores, values, shrink, head_dim, scratch.sums + row * kMaskedRowFloats);
  }
}

// The panels of all tiles of a row, some at a time.
GOSSAMER_INLINE void attend_tiles(const Walk& walk, int64_t row) {
  const MaskedParams& w = walk.w;
  const MaskedMap& map = w.map;
  Panel panels[kMaskedGroupPanels];
  int count = 0;
  for (int32_t t = map.offsets[row]; t < map.offsets[row + 1]; ++t) {
    const int32_t kind = map.kinds[t];
    const int per_tile = map.tile_k / kPanelKeys, first_panel = map.columns[t] * per_tile;
    const int32_t* words = kind < 0 ? nullptr : map.bits + static_cast<int64_t>(kind) * map.tile_q * per_tile;
    for (int i = 0; i < per_tile && (first_panel + i) * kPanelKeys < w.kv_len; ++i) {
      const int64_t panel = first_panel + i;
      const int key = (first_panel + i) * kPanelKeys;
      const uint32_t valid = w.kv_len - key < kPanelKeys ? (1u << (w.kv_len - key)) - 1 : ~0u;
      panels[count++] = {walk.keys + panel * masked_key_floats(w.head_dim),
                         walk.values + panel * masked_value_floats(w.head_dim), words ? words + i : nullptr, key,
                         valid};
      if (count < kMaskedGroupPanels) continue;
      attend(walk, panels, count);
      count = 0;
    }
  }
  if (count > 0) attend(walk, panels, count);
}

template <class T>
GOSSAMER_INLINE void finish(const Walk& walk) {
  const MaskedParams& w = walk.w;
  const int64_t first = (static_cast<int64_t>(walk.item.batch) * w.heads + walk.item.head) * w.q_len +
                        static_cast<int64_t>(walk.item.row) * w.map.tile_q;
  for (int r = 0; r < walk.rows; ++r) {
    const float total = sum(load(walk.scratch.totals + r * kLanes));
    const float factor = total == 0 ? 0 : 1 / total;
    const float* sums = walk.scratch.sums + r * kMaskedRowFloats;
    T* out = static_cast<T*>(w.out) + (first + r) * w.head_dim;
    int c = 0;
    for (; c + kLanes <= w.head_dim; c += kLanes) store(out + c, load(sums + c) * factor);
    if (c < w.head_dim) store_partial(out + c, load(sums + c) * factor, w.head_dim - c);
    if (w.lse == nullptr) continue;
    w.lse[first + r] = total == 0 ? kNothing : offset_of(walk.scratch.maxima[r]) * kLn2 + __builtin_logf(total);
  }
}

template <class T>
void row_of_tiles(const MaskedParams& w, const MaskedItem& item, const float* keys, const float* values,
                  MaskedScratch& scratch) {
  const MaskedMap& map = w.map;
  const int rows = smaller(map.tile_q, w.q_len - item.row * map.tile_q);
  const Walk walk{w,
                  item,
                  scratch,
                  keys,
                  values,
                  rows,
                  (rows + kStripRows - 1) / kStripRows,
                  w.softcap == 0 && w.bias.data == nullptr};
  const int64_t group = (map.batch == 1 ? 0 : item.batch) * map.heads + (map.heads == 1 ? 0 : item.head);
  start<T>(walk);
  attend_tiles(walk, group * map.rows + item.row);
  finish<T>(walk);
}

template <class T>
void pack(const MaskedParams& w, int batch, int kv_head, int panel, float* keys, float* values) {
  const int64_t first = static_cast<int64_t>(panel) * kPanelKeys;
  const int count = smaller(kPanelKeys, w.kv_len - panel * kPanelKeys);
  const auto at = [&](const MaskedHeads& t) {
    return static_cast<const T*>(t.data) + batch * t.batch_stride + kv_head * t.head_stride + first * t.token_stride;
  };
  pack_keys(at(w.k), w.k.token_stride, count, w.head_dim, keys);
  pack_values(at(w.v), w.v.token_stride, count, w.head_dim, values);
}

}  // namespace

namespace GOSSAMER_ISA {

void masked_pack(const MaskedParams& work, DType dtype, int batch, int kv_head, int panel, float* keys, float* values) {
  if (dtype == DType::f32) pack<float>(work, batch, kv_head, panel, keys, values);
  if (dtype == DType::f16) pack<f16_t>(work, batch, kv_head, panel, keys, values);
  if (dtype == DType::bf16) pack<bf16_t>(work, batch, kv_head, panel, keys, values);
}

void masked_row(const MaskedParams& work, DType dtype, const MaskedItem& item, const float* keys, const float* values,
                MaskedScratch& scratch) {
  if (dtype == DType::f32) row_of_tiles<float>(work, item, keys, values, scratch);
  if (dtype == DType::f16) row_of_tiles<f16_t>(work, item, keys, values, scratch);
  if (dtype == DType::bf16) row_of_tiles<bf16_t>(work, item, keys, values, scratch);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
