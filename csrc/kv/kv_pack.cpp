#include "kv/kv_pack.h"

#include <algorithm>
#include <vector>

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
