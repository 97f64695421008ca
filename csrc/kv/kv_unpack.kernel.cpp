#include "kv/kv_unpack.kernel.h"

#include "kv/rows.kernel.h"

namespace gossamer {
namespace {

GOSSAMER_INLINE void load_row(const KvFormat& f, const uint8_t* block, int token, float* row) {
  ChannelScales scales;
  const bool by_channel = f.scales == Scales::channel;
  if (by_channel) load_channel_scales(f, block, scales);
  if (!f.sparse) {
    load_entries(f, block, token, token + 1, row, 0);
    for (int c = 0; by_channel && c < f.head_dim; ++c) row[c] = row[c] * scales.scale[c] + scales.minimum[c];
    return;
  }
  float entries[kRowBuffer];
  load_entries(f, block, token, token + 1, entries, 0);
  spread_row(f, block + token * (f.head_dim / 8), entries, by_channel ? &scales : nullptr, row);
}

template <class T>
GOSSAMER_INLINE void store_row(const float* row, int n, T* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(row + i));
  if (i < n) store_partial(out + i, load(row + i), n - i);
}

template <class T>
void unpack_rows(const KvUnpack& w, int64_t begin, int64_t end) {
  const KvFormat& f = w.format;
  alignas(64) float row[kRowBuffer] = {};
  for (int64_t r = begin; r < end; ++r) {
    for (int head = 0; head < w.heads; ++head) {
      T* out = static_cast<T*>(w.out) + (r * w.heads + head) * f.head_dim;
      const int64_t slot = w.slots[r];
      if (slot < 0) {
        std::memset(out, 0, f.head_dim * sizeof(T));
        continue;
      }
      const uint8_t* block = w.blocks + slot / kBlockTokens * w.block_stride + head * w.block_head_stride;
      load_row(f, block, static_cast<int>(slot % kBlockTokens), row);
      store_row(row, f.head_dim, out);
    }
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void kv_unpack(const KvUnpack& work, DType dtype, int64_t begin, int64_t end) {
  if (dtype == DType::f32) unpack_rows<float>(work, begin, end);
  if (dtype == DType::f16) unpack_rows<f16_t>(work, begin, end);
  if (dtype == DType::bf16) unpack_rows<bf16_t>(work, begin, end);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
