#include "attention/masked/masked_attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "attention/masked/masked_attention.kernel.h"

namespace gossamer {
namespace {

constexpr int64_t kPackedFloats = int64_t{1} << 22;  // of the heads that are packed together, if more than one

// As check_map in gossamer/ops/masked_checks.py.
void check_map(const MaskedParams& w) {
  const char* op = "masked_attention";
  const MaskedMap& map = w.map;
  const int64_t rows = static_cast<int64_t>(map.batch) * map.heads * map.rows;
  bool rises = map.offsets[0] == 0;
  for (int64_t i = 0; i < rows; ++i) rises &= map.offsets[i] <= map.offsets[i + 1];
  STD_TORCH_CHECK(rises && map.offsets[rows] <= map.tiles, op, ": offsets must rise from 0 to the number of tiles");
  for (int64_t t = 0; t < map.tiles; ++t) {
    const int64_t end = (static_cast<int64_t>(map.columns[t]) + 1) * map.tile_k;
    STD_TORCH_CHECK(map.columns[t] >= 0 && end - map.tile_k < w.kv_len, op, ": a column is ", map.columns[t]);
    STD_TORCH_CHECK(map.kinds[t] >= -1 && map.kinds[t] < map.patterns, op, ": a kind is ", map.kinds[t]);
    STD_TORCH_CHECK(map.kinds[t] >= 0 || end <= w.kv_len, op, ": a tile beyond the last key is full");
  }
  std::vector<bool> named(rows);
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t row = map.order[i];
    STD_TORCH_CHECK(row >= 0 && row < rows && !named[row], op, ": order must name every row of tiles once");
    named[row] = true;
  }
}

// The group of the map that a head's rows are in.
int64_t group_of(const MaskedMap& map, int batch, int head) {
  return static_cast<int64_t>(map.batch == 1 ? 0 : batch) * map.heads + (map.heads == 1 ? 0 : head);
}

struct alignas(64) CacheLine {
  float floats[16];
};

// A KV head with its panels, in memory that the next heads reuse.
struct PackedHead {
  int batch, kv_head;
  float *keys, *values;
};

struct PanelTask {
  int head, panel;
};

struct RowTask {
  int head;  // of the PackedHeads
  MaskedItem item;
};

class Run {
 public:
  explicit Run(const MaskedCall& call) : call_(call), w_(call.work) {
    const int64_t groups = static_cast<int64_t>(w_.map.batch) * w_.map.heads, rows = w_.map.rows;
    std::vector<int64_t> next(groups);
    for (int64_t g = 0; g < groups; ++g) next[g] = g * rows;
    order_.resize(groups * rows);
    for (int64_t i = 0; i < groups * rows; ++i) {
      const int32_t row = w_.map.order[i];
      order_[next[row / rows]++] = static_cast<int>(row % rows);
    }
  }

  void all() {
    const int64_t heads = static_cast<int64_t>(w_.batch) * w_.kv_heads;
    const int64_t panels = (w_.kv_len + kPanelKeys - 1) / kPanelKeys;
    const int64_t key_floats = panels * masked_key_floats(w_.head_dim);
    const int64_t floats = key_floats + panels * masked_value_floats(w_.head_dim);
    const int64_t together = std::max<int64_t>(1, std::min(heads, kPackedFloats / std::max<int64_t>(floats, 1)));
    const std::unique_ptr<CacheLine[]> memory(new CacheLine[together * (floats / 16)]);
    for (int64_t first = 0; first < heads; first += together) {
      heads_.clear();
      for (int64_t i = first; i < std::min(first + together, heads); ++i) {
        float* at = memory[0].floats + (i - first) * floats;
        heads_.push_back({static_cast<int>(i / w_.kv_heads), static_cast<int>(i % w_.kv_heads), at, at + key_floats});
      }
      pack();
      attend();
    }
  }

 private:
  // Whether some query of a KV head has tiles of a panel.
  void mark(const PackedHead& head, std::vector<bool>& used) const {
    const int group = w_.heads / w_.kv_heads, per_tile = w_.map.tile_k / kPanelKeys;
    for (int h = head.kv_head * group; h < (head.kv_head + 1) * group; ++h) {
      const int64_t row = group_of(w_.map, head.batch, h) * w_.map.rows;
      for (int32_t t = w_.map.offsets[row]; t < w_.map.offsets[row + w_.map.rows]; ++t) {
        const size_t panel = static_cast<size_t>(w_.map.columns[t]) * per_tile;
        for (size_t i = panel; i < std::min(panel + per_tile, used.size()); ++i) used[i] = true;
      }
      if (w_.map.heads == 1) break;
    }
  }

  void pack() const {
    std::vector<PanelTask> tasks;
    std::vector<bool> used((w_.kv_len + kPanelKeys - 1) / kPanelKeys);
    for (size_t i = 0; i < heads_.size(); ++i) {
      if (i == 0 || w_.map.batch > 1 || w_.map.heads > 1) {
        used.assign(used.size(), false);
        mark(heads_[i], used);
      }
      for (size_t p = 0; p < used.size(); ++p) {
        if (used[p]) tasks.push_back({static_cast<int>(i), static_cast<int>(p)});
      }
    }
    const auto kernel = GOSSAMER_CPU_KERNEL(masked_pack);
    torch::stable::parallel_for(0, tasks.size(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const PackedHead& head = heads_[tasks[t].head];
        const int panel = tasks[t].panel;
        kernel(w_, call_.dtype, head.batch, head.kv_head, panel, head.keys + panel * masked_key_floats(w_.head_dim),
               head.values + panel * masked_value_floats(w_.head_dim));
      }
    });
  }

  // Head by head, whose panels are then in the caches; in each the longest rows first, heads of a group side by side.
  std::vector<RowTask> row_tasks() const {
    std::vector<RowTask> tasks;
    const int group = w_.heads / w_.kv_heads;
    tasks.reserve(heads_.size() * group * w_.map.rows);
    for (size_t i = 0; i < heads_.size(); ++i) {
      const PackedHead& head = heads_[i];
      for (int r = 0; r < w_.map.rows; ++r) {
        for (int h = head.kv_head * group; h < (head.kv_head + 1) * group; ++h) {
          const int row = order_[group_of(w_.map, head.batch, h) * w_.map.rows + r];
          tasks.push_back({static_cast<int>(i), {head.batch, h, row}});
        }
      }
    }
    return tasks;
  }

  void attend() const {
    const std::vector<RowTask> tasks = row_tasks();
    const auto kernel = GOSSAMER_CPU_KERNEL(masked_row);
    const int64_t count = static_cast<int64_t>(tasks.size());
    std::atomic<int64_t> next{0};
    torch::stable::parallel_for(0, count, 1, [&](int64_t, int64_t) {
      // Whoever is free takes the next one: rows differ in length, and threads in speed.
      const std::unique_ptr<MaskedScratch> scratch(new MaskedScratch);
      for (int64_t i = next++; i < count; i = next++) {
        const PackedHead& head = heads_[tasks[i].head];
        kernel(w_, call_.dtype, tasks[i].item, head.keys, head.values, *scratch);
      }
    });
  }

  const MaskedCall& call_;
  const MaskedParams& w_;
  std::vector<int> order_;  // rows of tiles of each group, those with the most tiles first
  std::vector<PackedHead> heads_;
};

}  // namespace

std::tuple<Tensor, Tensor> masked_attention_cpu(const MaskedArguments& arguments) {
  const MaskedCall call = prepare_masked(arguments);
  check_map(call.work);
  if (call.out.numel() > 0) Run(call).all();
  return {call.out, call.lse};
}

}  // namespace gossamer
