#include "attention/decode/decode_attention.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "attention/decode/decode_attention.kernel.h"

namespace gossamer {
namespace {

constexpr int kItemBlocks = 8;  // of a fixed size, so that results do not depend on threads or other sequences
constexpr int64_t kPartialFloats = int64_t{1} << 22;  // that may wait to be merged

// The blocks that queries of a sequence see: begin .. end-1.
struct Range {
  int begin, end;
};

Range seen_blocks(const DecodeParams& w, int sequence) {
  const int64_t length = w.seq_lens[sequence];
  const int64_t first = std::max<int64_t>(length - w.q_len, 0);
  const int64_t low = w.sliding ? std::max<int64_t>(first - w.sliding + 1, 0) : 0;
  return {static_cast<int>(low / kBlockTokens), static_cast<int>((length + kBlockTokens - 1) / kBlockTokens)};
}

void check_pages(const DecodeParams& w, const DecodePool& pool, int sequence, int64_t begin, int64_t end) {
  const int64_t num_pages = pool.num_blocks / w.page_blocks;
  for (int64_t page = begin / w.page_blocks; begin < end && page <= (end - 1) / w.page_blocks; ++page) {
    const int32_t number = pool.table[sequence * pool.table_stride + page];
    STD_TORCH_CHECK(number >= 0 && number < num_pages, "decode_attention: a page is ", number, "; there are ",
                    num_pages);
  }
}

// As check_numbers in gossamer/ops/decode_checks.py.
void check_sequence(const DecodeParams& w, int sequence) {
  const int64_t length = w.seq_lens[sequence], capacity = static_cast<int64_t>(w.max_blocks) * kBlockTokens;
  STD_TORCH_CHECK(length >= 0 && length <= capacity, "decode_attention: a length is ", length, "; must be 0 to ",
                  capacity);
  const Range seen = seen_blocks(w, sequence);
  if (!w.dense.table) return check_pages(w, w.main, sequence, seen.begin, seen.end);
  const auto recent = [&](int64_t position) { return position / kBlockTokens - w.window_blocks; };
  const int64_t from = std::max<int64_t>(seen.begin, w.sink_blocks);
  const int64_t dense = std::max<int64_t>(seen.begin, recent(std::max<int64_t>(length - w.q_len, 0)));
  check_pages(w, w.main, sequence, from, std::min<int64_t>(seen.end, recent(length - 1)));
  check_pages(w, w.dense, sequence, seen.begin, std::min<int64_t>(seen.end, w.sink_blocks));
  check_pages(w, w.dense, sequence, dense, seen.end);
}

// A sequence and KV head, with its items.
struct Task {
  int sequence, kv_head;
  int64_t first, count;
};

struct Schedule {
  std::vector<Task> tasks;
  std::vector<DecodeItem> items;
};

// Tasks from `task` on, as many as leave no more partial results behind than may wait.
Schedule schedule_some(const DecodeParams& w, int64_t& task) {
  const int64_t tasks = static_cast<int64_t>(w.sequences) * w.kv_heads;
  const int64_t most = kPartialFloats / decode_partial(w).floats;
  Schedule schedule;
  for (; task < tasks && (schedule.tasks.empty() || static_cast<int64_t>(schedule.items.size()) < most); ++task) {
    const int sequence = static_cast<int>(task / w.kv_heads), kv_head = static_cast<int>(task % w.kv_heads);
    const Range seen = seen_blocks(w, sequence);
    const int64_t first = static_cast<int64_t>(schedule.items.size());
    for (int block = seen.begin / kItemBlocks * kItemBlocks; block < seen.end; block += kItemBlocks) {
      schedule.items.push_back(
          {sequence, kv_head, std::max(block, seen.begin), std::min(block + kItemBlocks, seen.end)});
    }
    schedule.tasks.push_back({sequence, kv_head, first, static_cast<int64_t>(schedule.items.size()) - first});
  }
  return schedule;
}

void run(const DecodeCall& call, const Schedule& schedule) {
  const auto blocks = GOSSAMER_CPU_KERNEL(decode_blocks);
  const auto merge = GOSSAMER_CPU_KERNEL(decode_merge);
  const int64_t floats = decode_partial(call.work).floats, items = static_cast<int64_t>(schedule.items.size());
  const std::unique_ptr<float[]> partials(new float[items * floats]);
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, items, 1, [&](int64_t, int64_t) {
    // Whoever is free takes the next one: items differ in length, and threads in speed.
    const std::unique_ptr<DecodeScratch> scratch(new DecodeScratch);
    if (call.work.main.k.has_codes()) set_code_planes(call.work.main.k, scratch->codes.k_planes);
    if (call.work.main.v.has_codes()) set_code_planes(call.work.main.v, scratch->codes.v_planes);
    for (int64_t i = next++; i < items; i = next++) {
      blocks(call.work, call.dtype, schedule.items[i], *scratch, partials.get() + i * floats);
    }
  });
  torch::stable::parallel_for(0, schedule.tasks.size(), 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Task& task = schedule.tasks[t];
      merge(call.work, call.dtype, task.sequence, task.kv_head, partials.get() + task.first * floats,
            static_cast<int>(task.count));
    }
  });
}

}  // namespace

std::tuple<Tensor, Tensor> decode_attention_cpu(const DecodeArguments& arguments) {
  const DecodeCall call = prepare_decode(arguments);
  for (int s = 0; s < call.work.sequences; ++s) check_sequence(call.work, s);
  const int64_t tasks = static_cast<int64_t>(call.work.sequences) * call.work.kv_heads;
  for (int64_t task = 0; task < tasks;) run(call, schedule_some(call.work, task));
  return {call.out, call.lse};
}

}  // namespace gossamer
