#include "attention/masked/masked_attention_rows.h"

#include <algorithm>
#include <memory>

#include "attention/masked/masked_attention_rows.kernel.h"

namespace gossamer {
namespace {

// As _check_values in gossamer/ops/masked_attention_rows.py.
void check_lists(const MaskedLists& lists, int64_t rows, int64_t count, int kv_len) {
  const char* op = "masked_attention_rows";
  bool rises = lists.offsets[0] == 0;
  for (int64_t i = 0; i < rows; ++i) rises &= lists.offsets[i] <= lists.offsets[i + 1];
  STD_TORCH_CHECK(rises && lists.offsets[rows] <= count, op, ": row_offsets must rise from 0 to the number of keys");
  for (int64_t i = 0; i < count; ++i) {
    STD_TORCH_CHECK(lists.keys[i] >= 0 && lists.keys[i] < kv_len, op, ": a key is ", lists.keys[i]);
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = lists.offsets[row] + 1; i < lists.offsets[row + 1]; ++i) {
      STD_TORCH_CHECK(lists.keys[i - 1] < lists.keys[i], op, ": the keys of a query must ascend");
    }
  }
  for (int64_t i = lists.offsets[rows] + 1; i < count; ++i) {
    STD_TORCH_CHECK(lists.keys[i - 1] < lists.keys[i], op, ": the keys of a query must ascend");
  }
}

}  // namespace

std::tuple<Tensor, Tensor> masked_attention_rows_cpu(const MaskedRowsArguments& arguments) {
  const MaskedCall call = prepare_masked_rows(arguments);
  const Tensor &row_offsets = arguments.row_offsets, &keys = arguments.keys;
  const MaskedParams& w = call.work;
  const MaskedLists lists{static_cast<const int32_t*>(row_offsets.const_data_ptr()),
                          static_cast<const int32_t*>(keys.const_data_ptr())};
  check_lists(lists, row_offsets.size(0) - 1, keys.size(0), w.kv_len);
  if (call.lse.numel() == 0) return {call.out, call.lse};
  const int group = w.heads / w.kv_heads;
  const int shared = w.map.heads > 1 ? 1 : std::min(group, kMaskedSharedHeads);
  const int parts = (group + shared - 1) / shared;  // of the heads of a KV head
  const int64_t rows = static_cast<int64_t>(w.batch) * w.kv_heads * w.q_len * parts;
  const auto kernel = GOSSAMER_CPU_KERNEL(masked_list);
  torch::stable::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<MaskedListScratch> scratch(new MaskedListScratch);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t set = i / w.q_len;
      const int part = static_cast<int>(set % parts), kv_head = static_cast<int>(set / parts % w.kv_heads);
      const int first = part * shared;
      kernel(w, call.dtype, lists,
             {static_cast<int>(set / parts / w.kv_heads), kv_head * group + first, std::min(shared, group - first),
              static_cast<int>(i % w.q_len)},
             *scratch);
    }
  });
  return {call.out, call.lse};
}

}  // namespace gossamer
