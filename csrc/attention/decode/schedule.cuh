// Which blocks a sequence's queries see, and how the work of a ragged batch is cut into equal shares.
//
// Work is counted in units: one block of one item, where an item is a (sequence, KV head, tile of query rows). All
// units of a batch lie in one line, items one after the other, and every CTA gets an equal piece of the line: no SM
// waits for a long sequence, and the grid does not depend on the lengths, which only the device knows. A CTA works its
// piece out from the lengths; reading them takes less time than another kernel would.
#pragma once

#include <climits>

#include "attention/decode/params.h"
#include "gossamer/common.h"
#include "gossamer/cuda/divider.cuh"

namespace gossamer::cuda {

// The blocks that a sequence's queries see: some of the main pool, and of the dense pool the sinks and the latest.
struct SeenBlocks {
  int main_begin, main_count, sink_begin, sink_count, recent_begin, recent_count;

  __device__ __forceinline__ int dense_count() const { return sink_count + recent_count; }
  // At least one, in which nothing is seen and that is written down.
  __device__ __forceinline__ int units() const { return max(main_count + dense_count(), 1); }
};

GOSSAMER_INLINE bool bad_length(const DecodeParams& w, int length) {
  return length < 0 || (length - 1) / kBlockTokens >= w.max_blocks;
}

GOSSAMER_INLINE SeenBlocks seen_blocks(const DecodeParams& w, int length) {
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

// Division of numbers from 0 to 2^31, with remainders: a short call is little else than a chain of latencies.
struct IntDivider {
  int divisor = 1;
  Divider by;

  IntDivider() = default;
  explicit IntDivider(int number) : divisor(number), by(static_cast<uint32_t>(number)) {}
  __device__ __forceinline__ int operator()(int x) const { return static_cast<int>(by.divide(x)); }
  __device__ __forceinline__ int modulo(int x) const { return x - divisor * (*this)(x); }
};

// How the work is cut; the same for all launches of a kind of call.
struct Cut {
  int tiles;        // of query rows; the items of a sequence are kv_heads times that
  int ctas, warps;  // pieces; warps of a CTA
  int least;        // units below which a piece is not worth a CTA
  IntDivider by_tiles, by_ctas, by_warps, by_group, by_page;  // by_page: by blocks of a page
  float factor;                                               // of Q K^T, which makes scores of it
  float* partials;     // [2 * ctas] results of the first and of the last item of a CTA, where another CTA has a part
  uint64_t* arrivals;  // [2 * ctas] how many CTAs are done with such an item: see Arrivals in merge.cuh
  uint64_t ticket;     // of this launch
};

// A place in the line of units.
struct Place {
  bool equal;            // whether all items have the same number of units
  int share, total;      // units of a piece, of everything
  int sequence, before;  // the sequence that has the unit, and the units before that sequence

  // Where the CTA's piece ends.
  __device__ __forceinline__ int stop() const { return min((static_cast<int>(blockIdx.x) + 1) * share, total); }
};

// The room of an item in the line. Among items of unequal length it is larger than the item: an item keeps all warps of
// a CTA for whole blocks, and beginning it takes about as long as a block.
GOSSAMER_INLINE int room_of(const Cut& cut, int units, bool equal) {
  return equal ? units : cut.by_warps(units + 2 * cut.warps - 1) * cut.warps;
}
GOSSAMER_INLINE int room_of_sequence(const DecodeParams& w, const Cut& cut, int sequence, bool equal) {
  return room_of(cut, seen_blocks(w, w.seq_lens[sequence]).units(), equal) * w.kv_heads * cut.tiles;
}

// Of numbers that are not negative; signs would cost as much again.
GOSSAMER_INLINE int quotient(int a, int b) {
  return static_cast<int>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b));
}

// The units of a piece. Where all items have the same number of units, pieces end where items do if that makes them at
// most 1/16 longer.
GOSSAMER_INLINE int share_of(const Cut& cut, int total, bool equal, int units) {
  const int share = max(cut.by_ctas(total + cut.ctas - 1), cut.least);
  if (!equal) return share;
  const int pieces = max(quotient(units, share), 1);  // of an item
  const int aligned = share < units ? quotient(units + pieces - 1, pieces) : quotient(share + units - 1, units) * units;
  return aligned - share <= share / 16 ? aligned : share;
}

constexpr int kMaxWarps = 16;  // of a CTA

// The piece of a CTA: where it begins in a batch of at most 32 sequences. Every warp for itself, without a barrier.
GOSSAMER_INLINE Place place_among_few(const DecodeParams& w, const Cut& cut, int piece) {
  const int lane = threadIdx.x % 32, items = w.kv_heads * cut.tiles;
  const bool mine = lane < w.sequences;
  const int units = seen_blocks(w, mine ? w.seq_lens[lane] : 0).units();
  const int least = __reduce_min_sync(~0u, mine ? units : INT_MAX), most = __reduce_max_sync(~0u, mine ? units : 0);
  Place place{least == most, 0, 0, 0, 0};
  const int room = mine ? room_of(cut, units, place.equal) * items : 0;
  int upto = room;
  if (place.equal) {
    upto = room * (lane + 1);
    place.total = least * items * w.sequences;
  } else {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, upto, d);
      if (lane >= d) upto += other;
    }
    place.total = __shfl_sync(~0u, upto, 31);
  }
  place.share = share_of(cut, place.total, place.equal, most);
  const unsigned beyond = __ballot_sync(~0u, mine && upto > piece * place.share);
  place.sequence = beyond ? __ffs(beyond) - 1 : 0;
  place.before = __shfl_sync(~0u, upto - room, place.sequence);
  return place;
}

// The same in any batch. All threads of the CTA.
GOSSAMER_INLINE Place place_among_many(const DecodeParams& w, const Cut& cut, int piece) {
  __shared__ int2 extremes[kMaxWarps];
  __shared__ int sums[kMaxWarps], found[2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int least = INT_MAX, most = 0, total = 0;
  for (int s = threadIdx.x; s < w.sequences; s += blockDim.x) {
    const int units = seen_blocks(w, w.seq_lens[s]).units();
    least = min(least, units);
    most = max(most, units);
  }
  least = __reduce_min_sync(~0u, least);
  most = __reduce_max_sync(~0u, most);
  if (lane == 0) extremes[warp] = {least, most};
  __syncthreads();
  for (int i = 0; i < warps; ++i) least = min(least, extremes[i].x), most = max(most, extremes[i].y);

  Place place{least == most, 0, 0, 0, 0};
  for (int s = threadIdx.x; s < w.sequences; s += blockDim.x) total += room_of_sequence(w, cut, s, place.equal);
  total = __reduce_add_sync(~0u, total);
  if (lane == 0) sums[warp] = total;
  __syncthreads();
  for (int i = 0; i < warps; ++i) place.total += sums[i];
  place.share = share_of(cut, place.total, place.equal, most);

  const int target = piece * place.share;
  int base = 0;
  for (int start = 0; start < w.sequences && base <= target; start += blockDim.x) {
    const int s = start + static_cast<int>(threadIdx.x);
    const int room = s < w.sequences ? room_of_sequence(w, cut, s, place.equal) : 0;
    int upto = room;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, upto, d);
      if (lane >= d) upto += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    upto += base;
    for (int i = 0; i < warps; ++i) {
      if (i < warp) upto += sums[i];
      base += sums[i];
    }
    if (upto - room <= target && target < upto) found[0] = s, found[1] = upto - room;
  }
  __syncthreads();
  place.sequence = found[0];
  place.before = found[1];
  return place;
}

// Where a piece begins, if it is not beyond the end. All threads of the CTA.
GOSSAMER_INLINE Place find_place(const DecodeParams& w, const Cut& cut, int piece) {
  return w.sequences <= 32 ? place_among_few(w, cut, piece) : place_among_many(w, cut, piece);
}

}  // namespace gossamer::cuda
