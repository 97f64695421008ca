#include "kv/kv_unpack.kernel.h"

#include "kv/codec.kernel.h"
#include "kv/select.kernel.h"

namespace gossamer {
namespace {

template <class T>
GOSSAMER_INLINE void widen(const uint8_t* bytes, int n, float* x) {
  for (int i = 0; i < n; i += kLanes) store(x + i, load(reinterpret_cast<const T*>(bytes) + i));
}

// Codes of a row as numbers: signed with a scale per row, else from 0.
GOSSAMER_INLINE void load_codes(const KvFormat& f, const uint8_t* block, int token, float* x) {
  const uint32_t mask = (1u << f.bits) - 1;
  const int32_t sign = f.scales == Scales::row ? 1 << (f.bits - 1) : 0;
  for (int c = 0; c < f.chunks; ++c) {
    uint64_t word = 0;
    std::memcpy(&word, block + f.values_at + (c * kBlockTokens + token) * f.bits, f.bits);
    for (int k = 0; k < kChunk; ++k) {
      const int32_t code = static_cast<int32_t>((word >> (k * f.bits)) & mask);
      x[c * kChunk + k] = f.values == Values::fp8 ? fp8_value(code) : static_cast<float>((code ^ sign) - sign);
    }
  }
}

GOSSAMER_INLINE float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return half_value(bits);
}

// The stored entries of a row, with their scales where these do not depend on the channel.
GOSSAMER_INLINE void load_entries(const KvFormat& f, const uint8_t* block, int token, float* x) {
  const int n = f.chunks * kChunk;
  if (f.bits >= 16) {
    alignas(64) uint8_t bytes[kRowBuffer * 4];
    for (int c = 0; c < f.chunks; ++c) {
      std::memcpy(bytes + c * f.bits, block + f.values_at + (c * kBlockTokens + token) * f.bits, f.bits);
    }
    if (f.values == Values::f32) widen<float>(bytes, n, x);
    if (f.values == Values::f16) widen<f16_t>(bytes, n, x);
    if (f.values == Values::bf16) widen<bf16_t>(bytes, n, x);
    return;
  }
  load_codes(f, block, token, x);
  if (f.scales == Scales::row) {
    const float scale = half_at(block + f.scales_at + token * 2);
    for (int i = 0; i < n; ++i) x[i] *= scale;
  } else if (f.scales == Scales::group) {
    for (int g = 0; g < n / kGroup; ++g) {
      const uint8_t* p = block + f.scales_at + (g * kBlockTokens + token) * 4;
      const float scale = half_at(p), minimum = half_at(p + 2);
      for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) x[i] = x[i] * scale + minimum;
    }
  }
}

GOSSAMER_INLINE void load_row(const KvFormat& f, const uint8_t* block, int token, float* row) {
  const bool by_channel = f.scales == Scales::channel;
  alignas(64) float scales[2 * kMaxHeadDim];  // scale and minimum of each channel
  if (by_channel) widen<f16_t>(block + f.scales_at, 2 * f.head_dim, scales);
  if (!f.sparse) {
    load_entries(f, block, token, row);
    if (!by_channel) return;
    for (int c = 0; c < f.head_dim; ++c) row[c] = row[c] * scales[2 * c] + scales[2 * c + 1];
    return;
  }
  float entries[kRowBuffer];
  load_entries(f, block, token, entries);
  uint32_t mask[kMaskWords] = {};
  std::memcpy(mask, block + token * (f.head_dim / 8), f.head_dim / 8);
  std::memset(row, 0, f.head_dim * sizeof(float));
  int count = 0;
  for (int word = 0; word < kMaskWords; ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const int c = 32 * word + __builtin_ctz(bits);
      // A slot that nobody wrote may have any bits: stay inside all the same.
      const float x = entries[count < f.chunks * kChunk ? count++ : f.chunks * kChunk - 1];
      row[c] = by_channel ? x * scales[2 * c] + scales[2 * c + 1] : x;
    }
  }
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
