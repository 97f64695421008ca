// Which tokens the query rows of an item see.
#pragma once

#include "attention/decode/merge.cuh"

namespace gossamer::cuda {

constexpr int kMaxRows = 16;  // of an item

enum class Kind { main, sink, recent };  // of blocks

// Tokens [low, high) that each row of an item sees of each kind of block.
struct RowLimits {
  int2 rows[3][kMaxRows];
  int whole_begin, whole_end;  // blocks of the main pool that all rows see whole

  template <int Rows>
  __device__ __forceinline__ void set(const DecodeParams& w, const Cut& cut, const Item<Rows>& item, int length) {
    if (threadIdx.x >= 3 * Rows) return;
    const int kind = threadIdx.x / Rows, row = threadIdx.x % Rows;
    const int position = length - w.q_len + item.query(cut, row);
    int2 limits = {w.sliding ? max(position - w.sliding + 1, 0) : 0, position + 1};
    if (w.dense.table != nullptr && kind != static_cast<int>(Kind::sink)) {
      const int dense_from = (max(position, 0) / kBlockTokens - w.window_blocks) * kBlockTokens;
      if (kind == static_cast<int>(Kind::main)) limits.y = min(limits.y, dense_from);
      if (kind == static_cast<int>(Kind::recent)) limits.x = max(limits.x, dense_from);
    }
    if (row >= item.rows || position < 0) limits = {0, 0};
    rows[kind][row] = limits;
    // From what the last row sees first to what the first row sees last.
    if (kind != static_cast<int>(Kind::main)) return;
    if (row == item.rows - 1) whole_begin = (limits.x + kBlockTokens - 1) / kBlockTokens;
    if (row == 0) whole_end = max(limits.y, 0) / kBlockTokens;
  }
  __device__ __forceinline__ bool sees(Kind kind, int row, int token) const {
    const int2 limits = rows[static_cast<int>(kind)][row];
    return token >= limits.x && token < limits.y;
  }
};

}  // namespace gossamer::cuda
