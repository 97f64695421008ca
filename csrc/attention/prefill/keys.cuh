// What a tile of queries sees, as ranges of keys in tiles of kTileKeys: the rule of gossamer/ops/prefill_attention.py.
//
// A range is counted in positions. Each query sees one interval of it, whose ends rise with the query's position, so
// that the first and the last query of a tile say which tiles of keys all of them see, and which nobody does.
#pragma once

#include "gossamer/common.h"

namespace gossamer::cuda {

constexpr int kTileQueries = 128, kTileKeys = 128;
constexpr int kUnlimited = 1 << 30;  // of window and sliding: there is none

// In tokens.
struct PrefillRule {
  int window, sink, sliding;
};

// A tile of 128 queries of a sequence, and where the sequence's keys lie.
struct QueryTile {
  int row, queries;      // the first row in q and out; how many are the sequence's own, up to 128
  int first, last, end;  // positions: of the first and the last query of the tile, and after the sequence's last
  int near_row, near_rows, edge, far_row;
};

struct Interval {
  int low, high;
};

enum class KeyRange { window, sinks, far };

// Tiles of keys of a range, the first of which begins at position `begin`. Those that some query sees only in part
// are numbered first, then those that all queries see.
struct RangeTiles {
  int begin, partial, before, full;  // before: how many of the partial ones lie before the full ones
  int row, end;                      // row of the key at position 0; position after the last of the sequence's own

  __device__ __forceinline__ int partial_at(int i) const { return begin + kTileKeys * (i < before ? i : i + full); }
  __device__ __forceinline__ int full_at(int i) const { return begin + kTileKeys * (before + i); }
};

// A tile of keys.
struct KeyTile {
  KeyRange range;
  int position, row;  // of its first key
  int own;            // keys from its begin to the end of the sequence's own, maybe more than a tile
};

GOSSAMER_INLINE int lesser(int a, int b) { return a < b ? a : b; }
GOSSAMER_INLINE int greater(int a, int b) { return a > b ? a : b; }

struct TileKeys {
  PrefillRule rule;
  bool joined;  // the window begins in the sink for all queries: both are one range then
  RangeTiles window, sinks, far;

  __device__ __forceinline__ TileKeys(const PrefillRule& rule, const QueryTile& t) : rule(rule) {
    joined = window_begin(t.last) <= rule.sink;
    const int shift = t.edge - lesser(rule.sink, t.edge);  // from a row of the window to its position
    window = tiles(KeyRange::window, t), sinks = tiles(KeyRange::sinks, t), far = tiles(KeyRange::far, t);
    window.row = t.near_row - shift, window.end = t.near_rows + shift;
    sinks.row = t.near_row, sinks.end = t.near_rows;
    far.row = t.far_row - rule.sink, far.end = window_begin(t.end - 1);
  }

  __device__ __forceinline__ int partial() const { return window.partial + sinks.partial + far.partial; }
  __device__ __forceinline__ int full() const { return window.full + sinks.full + far.full; }

  // Partial tile number i, of which there is one at least, and full tile number i.
  __device__ __forceinline__ KeyTile partial_tile(int i) const {
    if (i < window.partial) return tile(KeyRange::window, window, window.partial_at(i));
    i -= window.partial;
    if (i < sinks.partial) return tile(KeyRange::sinks, sinks, sinks.partial_at(i));
    return tile(KeyRange::far, far, far.partial_at(i - sinks.partial));
  }
  __device__ __forceinline__ KeyTile full_tile(int i) const {
    if (i < window.full) return tile(KeyRange::window, window, window.full_at(i));
    i -= window.full;
    if (i < sinks.full) return tile(KeyRange::sinks, sinks, sinks.full_at(i));
    return tile(KeyRange::far, far, far.full_at(i - sinks.full));
  }

  // The positions of a range that the query at this position sees; none if high <= low.
  __device__ __forceinline__ Interval seen(KeyRange range, int position) const {
    const int slide = greater(position - rule.sliding + 1, 0), begin = window_begin(position);
    if (range == KeyRange::window) return {greater(slide, joined ? 0 : greater(begin, rule.sink)), position + 1};
    if (range == KeyRange::sinks) return {slide, joined ? 0 : lesser(rule.sink, position + 1)};
    return {greater(slide, rule.sink), begin};
  }

 private:
  // Where the window of the query at this position begins; below 0 where it reaches further than the sequence.
  __device__ __forceinline__ int window_begin(int position) const { return position / 32 * 32 - rule.window; }

  __device__ __forceinline__ RangeTiles tiles(KeyRange range, const QueryTile& t) const {
    const Interval first = seen(range, t.first), last = seen(range, t.last);
    const int count = greater(last.high - first.low + kTileKeys - 1, 0) / kTileKeys;
    const int from = (greater(last.low - first.low, 0) + kTileKeys - 1) / kTileKeys;
    int to = greater(first.high - first.low, 0) / kTileKeys;
    // Every query sees itself, in the window: the kernel begins with a tile of it, and as with a partial one.
    if (range == KeyRange::window) to = lesser(to, count - 1);
    const int full = greater(to - from, 0);
    return {first.low, count - full, from, full, 0, 0};
  }

  __device__ __forceinline__ KeyTile tile(KeyRange range, const RangeTiles& r, int position) const {
    return {range, position, r.row + position, r.end - position};
  }
};

}  // namespace gossamer::cuda
