// Decode attention of one CTA: its share of the units of a batch, item by item.
#pragma once

#include "attention/decode_warp.cuh"

namespace gossamer::cuda {

// The part of an item that a CTA does: units [begin, end) of it.
template <int Rows>
struct Task {
  Item<Rows> item;
  SeenBlocks seen;
  int length, item_begin, room, begin, end;  // of the item in the line: where it begins, its room

  // `at`: a unit of the sequence of `place`; `stop`: where the CTA's piece ends.
  __device__ __forceinline__ Task(const DecodeAttention& w, const Cut& cut, const Place& place, int at, int stop)
      : seen(seen_blocks(w, w.seq_lens[place.sequence])), length(w.seq_lens[place.sequence]) {
    room = room_of(cut, seen.units(), place.equal);
    const int number = (at - place.before) / room;
    item = Item<Rows>(w, cut.tiles, place.sequence, number);
    item_begin = place.before + number * room;
    begin = at - item_begin;
    end = min(seen.units(), stop - item_begin);
  }
  __device__ __forceinline__ bool bad(const DecodeAttention& w) const {
    return bad_length(w, length) || (seen.main_count > 0 && w.main.num_blocks == 0);
  }
};

template <class Traits>
GOSSAMER_INLINE void begin_task(DecodeWarp<Traits>& warp, const Task<Traits::Rows>& task) {
  const SeenBlocks& seen = task.seen;
  warp.poisoned = task.bad(warp.w);
  if (warp.w.main.num_blocks == 0) return;
  warp.begin_main(task.item.sequence, task.item.head, seen.main_begin + task.begin + warp.warp,
                  seen.main_begin + min(task.end, seen.main_count));
}

// This warp's units.
template <class Traits>
GOSSAMER_INLINE void work_on_task(DecodeWarp<Traits>& warp, const Task<Traits::Rows>& task) {
  const Item<Traits::Rows>& item = task.item;
  const SeenBlocks& seen = task.seen;
  if (warp.w.main.num_blocks > 0) {
    // Blocks that all rows see whole: from what the last row sees first to what the first row sees last.
    const int2 first = warp.limits.rows[0][0], last = warp.limits.rows[0][item.rows - 1];
    const int2 whole = {(last.x + kBlockTokens - 1) / kBlockTokens, max(first.y, 0) / kBlockTokens};
    warp.walk_main(item.sequence, item.head, seen.main_begin + task.begin + warp.warp,
                   seen.main_begin + min(task.end, seen.main_count), whole);
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

// Merges the warps of the CTA, whose results are in their columns; into the output, or a piece for merge_kernel.
template <class Traits>
GOSSAMER_INLINE void finish_task(const DecodeWarp<Traits>& warp, const Task<Traits::Rows>& task, const Cut& cut,
                                 const Pieces& pieces, uint8_t* columns, int stride, bool poisoned) {
  constexpr int D = Traits::D;
  using Piece = PartialRows<D, Traits::Rows>;
  const Piece mine{cut.partials + static_cast<int64_t>(pieces.slot(blockIdx.x)) * Piece::kFloats};
#pragma unroll 1
  for (int i = threadIdx.x; i < task.item.rows * D; i += blockDim.x) {
    const int row = i / D, channel = i % D;
    Partial p;
    for (int j = 0; j < warp.warps; ++j) {
      const Piece of_warp{reinterpret_cast<float*>(columns + j * stride)};
      p.add(of_warp.top(row), of_warp.sum(row), of_warp.out(row, channel));
    }
    if (poisoned) p.sum = NAN;
    if (pieces.whole()) {
      task.item.template write<typename Traits::T>(warp.w, p, row, channel);
    } else {
      mine.out(row, channel) = p.out;
      if (channel == 0) mine.top(row) = p.top, mine.sum(row) = p.sum;
    }
  }
}

template <class Traits>
__global__ void __launch_bounds__(Traits::kMaxWarps * 32, 1)
    decode_kernel(const __grid_constant__ DecodeAttention w, const __grid_constant__ Cut cut,
                  const __grid_constant__ SharedLayout shared) {
  using T = typename Traits::T;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ RowLimits limits;
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");  // merge_kernel may take its place as CTAs end; it waits for all
#endif
  Place place = find_place(w, cut, [](int share) { return static_cast<int>(blockIdx.x) * share; });
  int at = blockIdx.x * place.share;
  const int stop = min(at + place.share, place.total);
  if (at >= stop) return;
  DecodeWarp<Traits> warp(w, shared, memory, limits);
  uint8_t* columns = memory + shared.warp_begin + shared.columns;
  const uint32_t queries = shared_address(memory);
  Task<Traits::Rows> task(w, cut, place, at, stop);
  begin_task(warp, task);
  for (;;) {
    limits.set(w, task.item, task.length);
    store_queries<T, Traits::D, Traits::Sets>(queries, task.item.rows,
                                              [&](int row) { return task.item.template input<T>(w, row); });
    warp.state.clear();
    __syncthreads();
    warp.queries.load(queries, warp.lane);
    work_on_task(warp, task);
    store_state(
        warp.state, warp.lane,
        PartialRows<Traits::D, Traits::Rows>{reinterpret_cast<float*>(columns + warp.warp * shared.warp_bytes)});
    // The first blocks of the next item come while this one is finished.
    const Task<Traits::Rows> done = task;
    const bool wrong = warp.poisoned;
    at = done.item_begin + done.room;
    if (at < stop) {
      for (int units; at >= place.before + (units = room_of_sequence(w, cut, place.sequence, place.equal));
           ++place.sequence) {
        place.before += units;
      }
      task = Task<Traits::Rows>(w, cut, place, at, stop);
      begin_task(warp, task);
    }
    const bool poisoned = __syncthreads_or(wrong);
    finish_task(warp, done, cut, Pieces(done.item_begin, done.room, place.share), columns, shared.warp_bytes, poisoned);
    if (at >= stop) return;
    __syncthreads();
  }
}

}  // namespace gossamer::cuda
