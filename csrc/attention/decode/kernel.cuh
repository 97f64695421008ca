// Decode attention of one CTA: its share of the units of a batch, item by item.
#pragma once

#include "attention/decode/tasks.cuh"
#include "attention/decode/warp.cuh"

namespace gossamer::cuda {

// Asks for what a step needs first; returns the thread's first word of the queries.
template <class Traits>
GOSSAMER_INLINE uint32_t begin_step(DecodeWarp<Traits>& warp, const Task<Traits::Rows>& task, const Cut& cut) {
  using T = typename Traits::T;
  // Pinned, or else what depends on the thread is kept from step to step, in registers that the blocks need.
  const uint32_t query = query_word<T, Traits::D, Traits::Sets, Traits::kFoldedK>(
      pinned(threadIdx.x), task.item.rows, [&](int row) { return task.item.template input<T>(warp.w, cut, row); });
  begin_task(warp, task);
  return query;
}

// The loop goes round once more than there are steps, for the end of the last one: there is one place in the code for
// each thing, because a short call waits for instructions as much as for data.
template <class Traits>
__global__ void __launch_bounds__(Traits::kMaxWarps * 32, 1)
    decode_kernel(const __grid_constant__ DecodeParams w, const __grid_constant__ Cut cut,
                  const __grid_constant__ SharedLayout shared) {
  using T = typename Traits::T;
  using CtaTask = Task<Traits::Rows>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ RowLimits limits;
  __shared__ Step<Traits::Rows> steps[2];
  prefetch_inputs(w, cut);
  Place place = find_place(w, cut, blockIdx.x);
  int at = blockIdx.x * place.share;
  if (at >= place.stop()) return;
  DecodeWarp<Traits> warp(w, cut, shared, memory, limits);
  if (Traits::kSpread) fill_spread(shared_address(memory) + shared.table);
  uint8_t* columns = memory + shared.warp_begin;
  const uint32_t queries = shared_address(memory);
  bool more = true, wrong = false;
#pragma unroll 1
  for (int count = 0;; ++count) {
    Step<Traits::Rows>& step = steps[count & 1];
    CtaTask task;
    uint32_t query = 0;
    if (more) {
      task = CtaTask(w, cut, place, at, place.stop());
      query = begin_step(warp, task, cut);
      if (threadIdx.x == 0) step = {place, task, Pieces(task.item_begin, task.room, place.share)};
    }
    if (count > 0) {  // what this step needs comes while the one before is finished
      const Step<Traits::Rows>& done = steps[count & 1 ^ 1];
      const bool poisoned = __syncthreads_or(wrong);
      const auto of_warp = [&](int i, int row, int channel) {
        const PartialRows<Traits::D, Traits::Rows> p{reinterpret_cast<float*>(columns + i * shared.warp_bytes)};
        return Partial{p.top(row), p.sum(row), p.out(row, channel)};
      };
      finish_task<T, Traits::D>(w, done.task, cut, done.pieces, poisoned, of_warp);
      if (!more) return;
      __syncthreads();
    }
    limits.set(w, cut, task.item, task.length);
    store_queries<T, Traits::D, Traits::Sets, Traits::kFoldedK>(
        queries, query, task.item.rows, [&](int row) { return task.item.template input<T>(w, cut, row); });
    warp.state.clear();
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
      if (!step.pieces.whole()) step.pieces.arrivals(cut).open(cut.ticket);
    }
    warp.load_queries(queries);
    work_on_task(warp, step.task);
    if (warp.warp < step.task.busy(cut)) {
      store_state(
          warp.state, warp.lane, Traits::kFoldedV ? unfolded(warp.lane / 4) : warp.lane / 4,
          PartialRows<Traits::D, Traits::Rows>{reinterpret_cast<float*>(columns + warp.warp * shared.warp_bytes)});
    }
    wrong = warp.poisoned;
    more = step.next(w, cut, place, at);
  }
}

}  // namespace gossamer::cuda
