// Which blocks a sequence's queries see, and how the work of a ragged batch is cut into equal shares.
//
// Work is counted in units: one block of one item, where an item is a (sequence, KV head, tile of query rows). All
// units of a batch lie in one line, items one after the other, and every CTA gets an equal piece of the line: no SM
// waits for a long sequence, and the grid does not depend on the lengths, which only the device knows. A CTA works its
// piece out from the lengths; reading them takes less time than another kernel would.
#pragma once

#include <climits>

#include "attention/decode.h"
#include "gossamer/common.h"

namespace gossamer::cuda {

// The blocks that a sequence's queries see: some of the main pool, and of the dense pool the sinks and the latest.
struct SeenBlocks {
  int main_begin, main_count, sink_begin, sink_count, recent_begin, recent_count;

  __device__ __forceinline__ int dense_count() const { return sink_count + recent_count; }
  // At least one, in which nothing is seen and that is written down.
  __device__ __forceinline__ int units() const { return max(main_count + dense_count(), 1); }
};

GOSSAMER_INLINE bool bad_length(const DecodeAttention& w, int length) {
  return length < 0 || (length - 1) / kBlockTokens >= w.max_blocks;
}

GOSSAMER_INLINE SeenBlocks seen_blocks(const DecodeAttention& w, int length) {
  SeenBlocks seen{};
  if (length == 0 || bad_length(w, length)) return seen;
  const int first = max(length - w.q_len, 0), last = length - 1;  // positions of the queries
  const int low = w.sliding ? max(first - w.sliding + 1, 0) / kBlockTokens : 0;
  const int end = last / kBlockTokens + 1;
  if (w.dense.table == nullptr) {
    seen.main_begin = low;
    seen.main_count = end - low;
    return seen;
  }
  seen.main_begin = max(low, w.sink_blocks);
  seen.main_count = max(last / kBlockTokens - w.window_blocks - seen.main_begin, 0);
  seen.sink_begin = low;
  seen.sink_count = max(min(w.sink_blocks, end) - low, 0);
  seen.recent_begin = max(max(first / kBlockTokens - w.window_blocks, low), w.sink_blocks);
  seen.recent_count = max(end - seen.recent_begin, 0);
  return seen;
}

// How the work is cut; the same for all launches of a kind of call.
struct Cut {
  int tiles;        // of query rows; the items of a sequence are kv_heads times that
  int ctas, warps;  // pieces; warps of a CTA
  int least;        // units below which a piece is not worth a CTA
  float* partials;  // [2 * ctas] results of the first and of the last item of a CTA, where another CTA has a part
};

// A place in the line of units.
struct Place {
  bool equal;            // whether all items have the same number of units
  int share, total;      // units of a piece, of everything
  int sequence, before;  // the sequence that has the unit, and the units before that sequence
};

// The room of an item in the line. Among items of unequal length it is larger than the item: an item keeps all warps of
// a CTA for whole blocks, and beginning it takes about as long as a block.
GOSSAMER_INLINE int room_of(const Cut& cut, int units, bool equal) {
  return equal ? units : (units + 2 * cut.warps - 1) / cut.warps * cut.warps;
}
GOSSAMER_INLINE int room_of_sequence(const DecodeAttention& w, const Cut& cut, int sequence, bool equal) {
  return room_of(cut, seen_blocks(w, w.seq_lens[sequence]).units(), equal) * w.kv_heads * cut.tiles;
}

// The units of a piece. Where all items have the same number of units, pieces end where items do if that makes them at
// most 1/16 longer.
GOSSAMER_INLINE int share_of(const Cut& cut, int total, bool equal, int units) {
  const int share = max((total + cut.ctas - 1) / cut.ctas, cut.least);
  if (!equal) return share;
  const int pieces = max(units / share, 1);  // of an item
  const int aligned = share < units ? (units + pieces - 1) / pieces : (share + units - 1) / units * units;
  return aligned - share <= share / 16 ? aligned : share;
}

constexpr int kMaxWarps = 16;  // of a CTA

// Where a sequence begins. All threads of the CTA.
GOSSAMER_INLINE Place sequence_place(const DecodeAttention& w, const Cut& cut, int sequence) {
  __shared__ int2 extremes[kMaxWarps], sums[kMaxWarps];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  int least = INT_MAX, most = 0;
  for (int s = threadIdx.x; s < w.sequences; s += blockDim.x) {
    const int units = seen_blocks(w, w.seq_lens[s]).units();
    least = min(least, units);
    most = max(most, units);
  }
  least = __reduce_min_sync(~0u, least);
  most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % 32 == 0) extremes[warp] = {least, most};
  __syncthreads();
  for (int i = 0; i < warps; ++i) least = min(least, extremes[i].x), most = max(most, extremes[i].y);

  Place place{least == most, 0, 0, sequence, 0};
  int total = 0, before = 0;
  for (int s = threadIdx.x; s < w.sequences; s += blockDim.x) {
    const int room = room_of_sequence(w, cut, s, place.equal);
    total += room;
    before += s < sequence ? room : 0;
  }
  total = __reduce_add_sync(~0u, total);
  before = __reduce_add_sync(~0u, before);
  if (threadIdx.x % 32 == 0) sums[warp] = {total, before};
  __syncthreads();
  for (int i = 0; i < warps; ++i) place.total += sums[i].x, place.before += sums[i].y;
  place.share = share_of(cut, place.total, place.equal, most);
  return place;
}

// The sequence of the unit that `unit` makes of the share, which must exist. All threads of the CTA.
template <class Unit>
GOSSAMER_INLINE Place find_place(const DecodeAttention& w, const Cut& cut, const Unit& unit) {
  __shared__ int sums[kMaxWarps], found[2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  Place place = sequence_place(w, cut, 0);
  const int target = unit(place.share);
  int base = 0;
  for (int start = 0; start < w.sequences && base <= target; start += blockDim.x) {
    const int s = start + static_cast<int>(threadIdx.x);
    const int room = s < w.sequences ? room_of_sequence(w, cut, s, place.equal) : 0;
    int upto = room;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, upto, d);
      if (lane >= d) upto += other;
    }
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    upto += base;
    for (int i = 0; i < warps; ++i) {
      if (i < warp) upto += sums[i];
      base += sums[i];
    }
    if (upto - room <= target && target < upto) found[0] = s, found[1] = upto - room;
    __syncthreads();
  }
  place.sequence = found[0];
  place.before = found[1];
  return place;
}

}  // namespace gossamer::cuda
