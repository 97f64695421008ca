// What a CTA does of the line of units: parts of items, one after the other.
#pragma once

#include "attention/decode/limits.cuh"

namespace gossamer::cuda {

// The part of an item that a CTA does: units [begin, end) of it.
template <int Rows>
struct Task {
  Item<Rows> item;
  SeenBlocks seen;
  int length, item_begin, room, begin, end;  // of the item in the line: where it begins, its room

  Task() = default;
  // `at`: a unit of the sequence of `place`; `stop`: where the CTA's piece ends.
  __device__ __forceinline__ Task(const DecodeParams& w, const Cut& cut, const Place& place, int at, int stop)
      : seen(seen_blocks(w, w.seq_lens[place.sequence])), length(w.seq_lens[place.sequence]) {
    room = room_of(cut, seen.units(), place.equal);
    const int number = quotient(at - place.before, room);
    item = Item<Rows>(w, cut, place.sequence, number);
    item_begin = place.before + number * room;
    begin = at - item_begin;
    end = min(seen.units(), stop - item_begin);
  }
  // Warps that have some of it.
  __device__ __forceinline__ int busy(const Cut& cut) const { return min(cut.warps, end - begin); }
  __device__ __forceinline__ bool bad(const DecodeParams& w) const {
    return bad_length(w, length) || (seen.main_count > 0 && w.main.num_blocks == 0);
  }
};

// Asks for the first blocks of a warp.
template <class Warp, int Rows>
GOSSAMER_INLINE void begin_task(Warp& warp, const Task<Rows>& task) {
  const SeenBlocks& seen = task.seen;
  warp.poisoned = task.bad(warp.w);
  if (warp.w.main.num_blocks == 0) return;
  warp.begin_main(task.item.sequence, task.item.head, seen.main_begin + task.begin + warp.warp,
                  seen.main_begin + min(task.end, seen.main_count));
}

// This warp's units.
template <class Warp, int Rows>
GOSSAMER_INLINE void work_on_task(Warp& warp, const Task<Rows>& task) {
  const Item<Rows>& item = task.item;
  const SeenBlocks& seen = task.seen;
  if (warp.w.main.num_blocks > 0) {
    warp.walk_main(item.sequence, item.head, seen.main_begin + task.begin + warp.warp,
                   seen.main_begin + min(task.end, seen.main_count));
  }
  if (seen.dense_count() == 0) return;
  // The dense ones go on where those ended, so that the warps stay level.
  const int dense_begin = max(task.begin, seen.main_count), end = min(task.end - seen.main_count, seen.dense_count());
  const int turn = (warp.warp + warp.warps - (dense_begin - task.begin) % warp.warps) % warp.warps;
#pragma unroll 1
  for (int at = dense_begin + turn - seen.main_count; at < end; at += warp.warps) {
    const bool sink = at < seen.sink_count;
    const int block = sink ? seen.sink_begin + at : seen.recent_begin + at - seen.sink_count;
    warp.attend_dense(item.sequence, item.head, block, sink ? Kind::sink : Kind::recent);
  }
}

// Merges the warps of the CTA, whose results are of_warp(warp, row, channel): into the output, or into a piece of it.
// The last CTA to write a piece of an item down merges them.
template <class T, int D, int Rows, class OfWarp>
GOSSAMER_INLINE void finish_task(const DecodeParams& w, const Task<Rows>& task, const Cut& cut, const Pieces& pieces,
                                 bool poisoned, const OfWarp& of_warp) {
  constexpr int kAtOnce = 4;
  using Piece = PartialRows<D, Rows>;
  const Piece mine{cut.partials + static_cast<int64_t>(pieces.slot(blockIdx.x)) * Piece::kFloats};
  const int busy = task.busy(cut);
#pragma unroll 1
  for (int i = threadIdx.x; i < task.item.rows * D; i += blockDim.x) {
    const int row = i / D, channel = i % D;
    Partial p;
#pragma unroll 1
    for (int j = 0; j < busy; j += kAtOnce) {
      Partial some[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (j + k < busy) some[k] = of_warp(j + k, row, channel);
      }
      p.add(some);
    }
    if (poisoned) p.sum = NAN;
    if (pieces.whole()) {
      task.item.template write<T>(w, cut, p, row, channel);
    } else {
      mine.out(row, channel) = p.out;
      if (channel == 0) mine.top(row) = p.top, mine.sum(row) = p.sum;
    }
  }
  if (pieces.whole()) return;
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) last = pieces.arrivals(cut).arrive(pieces.count());
  __syncthreads();
  if (last) merge_pieces<T, D>(w, cut, task.item, pieces);
}

// A CTA's step along its piece of the line: in shared memory, since registers are needed for the blocks.
template <int Rows>
struct Step {
  Place place;
  Task<Rows> task;
  Pieces pieces;

  // Where the next one begins, if there is one.
  __device__ __forceinline__ bool next(const DecodeParams& w, const Cut& cut, Place& to, int& at) const {
    at = task.item_begin + task.room;
    to = place;
    if (at >= to.stop()) return false;
    for (int units; at >= to.before + (units = room_of_sequence(w, cut, to.sequence, to.equal)); ++to.sequence) {
      to.before += units;
    }
    return true;
  }
};

// The table and the queries on their way to L2 while the lengths are being read; many of them are not worth it.
GOSSAMER_INLINE void prefetch_inputs(const DecodeParams& w, const Cut& cut) {
  const int64_t at = (blockIdx.x * blockDim.x + threadIdx.x) * 128, last = w.sequences - 1;
  const auto prefetch = [&](const void* from, int64_t bytes) {
    if (at >= bytes || bytes > 1 << 20) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(from) + at));
  };
  if (w.max_blocks <= 0) return;
  prefetch(w.main.table, 4 * (last * w.main.table_stride + cut.by_page(w.max_blocks)));
  const int64_t last_row = (w.q_len - 1) * w.q_token_stride + (w.kv_heads * w.group - 1) * w.q_head_stride;
  prefetch(w.q, 2 * (last * w.q_seq_stride + last_row + w.head_dim));
}

}  // namespace gossamer::cuda
