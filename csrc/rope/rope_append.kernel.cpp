#include "rope_append.kernel.h"

#include "rope_row.kernel.h"

namespace gossamer {
namespace {

// x matrix + offset of one row, `count` vectors of channels from `first` on, each with a sum in a register.
template <int count, class T>
GOSSAMER_INLINE void turn_channels(const float* x, const T* matrix, const T* offset, int64_t n, int64_t first, T* out) {
  F32 sums[count];
  for (int v = 0; v < count; ++v) sums[v] = offset ? load(offset + first + v * kLanes) : F32{};
  for (int64_t d = 0; d < n; ++d) {
    for (int v = 0; v < count; ++v) sums[v] += x[d] * load(matrix + d * n + first + v * kLanes);
  }
  for (int v = 0; v < count; ++v) store(out + first + v * kLanes, sums[v]);
}

template <class T>
GOSSAMER_INLINE void into_basis(const T* x, const T* matrix, const T* offset, int64_t n, T* out) {
  alignas(64) float wide[kMaxHeadDim];
  int64_t first = 0;
  for (; first + kLanes <= n; first += kLanes) store(wide + first, load(x + first));
  if (first < n) store_partial(wide + first, load_partial(x + first, n - first), n - first);
  for (first = 0; first + 4 * kLanes <= n; first += 4 * kLanes) turn_channels<4>(wide, matrix, offset, n, first, out);
  for (; first + kLanes <= n; first += kLanes) turn_channels<1>(wide, matrix, offset, n, first, out);
  if (first == n) return;
  const int64_t rest = n - first;
  F32 sums = offset ? load_partial(offset + first, rest) : F32{};
  for (int64_t d = 0; d < n; ++d) sums += wide[d] * load_partial(matrix + d * n + first, rest);
  store_partial(out + first, sums, rest);
}

// Chunks of a row, 32 tokens apart.
template <class T>
GOSSAMER_INLINE void store_row(const DenseBlocks& blocks, int64_t slot, int64_t head, const T* row, int64_t n) {
  constexpr int64_t bytes = kChunk * sizeof(T);
  if (slot < 0) return;
  uint8_t* block = blocks.data + slot / kBlockTokens * blocks.block_stride + head * blocks.head_stride;
  for (int64_t c = 0; c < n / kChunk; ++c) {
    std::memcpy(block + (c * kBlockTokens + slot % kBlockTokens) * bytes, row + c * kChunk, bytes);
  }
}

template <class T>
GOSSAMER_INLINE void append_row(const RopeAppend& work, int64_t token, int64_t head) {
  const RopeRows& rows = work.rows;
  const int64_t n = rows.head_dim, key = head - work.queries, value = key - work.kv_heads;
  const T* x = static_cast<const T*>(rows.x) + token * rows.token_stride + head * rows.head_stride;
  const int64_t slot = work.slots[token];
  if (value >= 0) return store_row(work.v, slot, value, x, n);
  if (key >= 0 && slot < 0) return;
  alignas(64) T turned[kMaxHeadDim], based[kMaxHeadDim];
  T* q = key < 0 ? static_cast<T*>(work.q) + (token * work.queries + head) * n : nullptr;
  const bool has_basis = work.matrices != nullptr;
  T* to = has_basis || q == nullptr ? turned : q;
  turn_row(rows, x, head, rows.positions[token * rows.position_stride], to);
  if (has_basis) {
    const T* matrix = static_cast<const T*>(work.matrices) + head * n * n;
    const T* offset = work.offsets ? static_cast<const T*>(work.offsets) + head * n : nullptr;
    to = q == nullptr ? based : q;
    into_basis(turned, matrix, offset, n, to);
  }
  if (key >= 0) store_row(work.k, slot, key, to, n);
}

template <class T>
void append_rows(const RopeAppend& work, int64_t begin, int64_t end) {
  const int64_t heads = work.queries + 2 * work.kv_heads;
  for (int64_t row = begin; row < end; ++row) append_row<T>(work, row / heads, row % heads);
}

}  // namespace

namespace GOSSAMER_ISA {

void rope_append(const RopeAppend& work, int64_t begin, int64_t end) {
  switch (work.rows.dtype) {
    case DType::f32:
      return append_rows<float>(work, begin, end);
    case DType::f16:
      return append_rows<f16_t>(work, begin, end);
    case DType::bf16:
      return append_rows<bf16_t>(work, begin, end);
  }
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
