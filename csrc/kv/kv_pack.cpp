#include "kv/kv_pack.h"

#include <algorithm>
#include <vector>

#include "kv/check_slots.h"
#include "kv/kv_pack.kernel.h"

namespace gossamer {
namespace {

// Before anything is written: for scales per channel each 32 slots are a block.
void check_whole_blocks(const char* op, const KvPack& w) {
  if (w.format.scales != Scales::channel) return;
  for (int64_t i = 0; i < w.rows; ++i) {
    const int64_t first = w.slots[i - i % kBlockTokens];
    const bool whole =
        first < 0 ? w.slots[i] == -1 : first % kBlockTokens == 0 && w.slots[i] == first + i % kBlockTokens;
    STD_TORCH_CHECK(whole, op, ": slots are not whole blocks");
  }
}

void run(const KvPackCall& call) {
  check_slots(call.op, call.work.slots, call.work.rows, call.work.num_blocks);
  check_whole_blocks(call.op, call.work);
  const int64_t tiles = (call.work.rows + kBlockTokens - 1) / kBlockTokens * call.work.heads;
  const auto kernel = GOSSAMER_CPU_KERNEL(kv_pack);
  // A row takes 0.1 to 0.3 us; fewer than 128 are not worth a thread.
  const int64_t grain = 128 / std::max<int64_t>(std::min<int64_t>(call.work.rows, kBlockTokens), 1);
  torch::stable::parallel_for(0, tiles, grain,
                              [&](int64_t begin, int64_t end) { kernel(call.work, call.dtype, begin, end); });
}

}  // namespace

void check_slots(const char* op, const int64_t* slots, int64_t count, int64_t num_blocks) {
  const int64_t capacity = num_blocks * kBlockTokens;
  bool increasing = true;  // as slots mostly are: nothing is there twice
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots[i];
    STD_TORCH_CHECK(slot >= -1 && slot < capacity, op, ": a slot is ", slot, "; must be -1 to ", capacity - 1);
    increasing = increasing && slot >= 0 && (i == 0 || slot > slots[i - 1]);
  }
  if (increasing) return;
  std::vector<int64_t> sorted(slots, slots + count);
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 1; i < count; ++i) {
    STD_TORCH_CHECK(sorted[i] < 0 || sorted[i] != sorted[i - 1], op, ": slot ", sorted[i], " is repeated");
  }
}

void kv_pack_cpu(const KvPackArguments& arguments) { run(prepare_kv_pack(arguments)); }

void kv_append_cpu(const KvAppendArguments& arguments) {
  KvPackCall call = prepare_kv_pack(arguments);
  KvPack& w = call.work;
  std::vector<int64_t> slots(w.rows, -1);
  for (int64_t i = 0; i < w.rows; ++i) {
    const int64_t position = w.slots[i];
    STD_TORCH_CHECK(position >= -1 && position < w.table_width * kBlockTokens, call.op, ": a position is ", position);
    if (position < 0) continue;
    const int64_t block = w.table[i * w.table_stride + position / kBlockTokens];
    STD_TORCH_CHECK(block >= 0 && block < w.num_blocks, call.op, ": the block of a position is ", block);
    slots[i] = block * kBlockTokens + position % kBlockTokens;
  }
  w.slots = slots.data();
  run(call);
}

}  // namespace gossamer
