#include "kv/kv_pack.kernel.h"

#include "kv/profile.kernel.h"
#include "kv/select.kernel.h"

namespace gossamer {
namespace {

// One row: its entries in float32 and, for sparse formats, which of them stay.
struct Row {
  alignas(64) float x[kRowBuffer];
  uint32_t mask[kMaskWords];
};

// The entries that stay, in channel order, padded with zeros.
struct Kept {
  alignas(64) float entries[kRowBuffer];
  uint8_t channel[kRowBuffer];
};

template <class T>
GOSSAMER_INLINE void load_row(const T* p, int n, float* row) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(row + i, load(p + i));
  if (i < n) store(row + i, load_partial(p + i, n - i));
}

GOSSAMER_INLINE void select_row(const KvPack& w, int64_t row, int head, Row& r) {
  const int n = w.format.head_dim;
  alignas(64) uint32_t ranks[kMaxHeadDim];
  const float* weights = w.weights ? w.weights + head * n : nullptr;
  const float* scores = w.scores ? w.scores + row * w.score_row_stride + head * w.score_head_stride : nullptr;
  for (int i = 0; i < n; i += kChunk) {  // whole chunks, which the compiler turns into vectors
    for (int k = i; k < i + kChunk; ++k) {
      const float score = scores ? scores[k] : weights ? r.x[k] * weights[k] : r.x[k];
      uint32_t rank;
      std::memcpy(&rank, &score, sizeof rank);
      rank &= 0x7fffffffu;
      ranks[k] = rank > kInfinity ? kNanRank : rank;
    }
  }
  for (int i = n; i % 32; ++i) ranks[i] = 0;
  select_largest(ranks, n, w.format.keep, r.mask);
}

GOSSAMER_INLINE void gather_kept(const KvFormat& f, const Row& r, Kept& kept) {
  int count = 0;
  for (int word = 0; word < (f.head_dim + 31) / 32; ++word) {
    for (uint32_t bits = r.mask[word]; bits != 0; bits &= bits - 1) {
      const int c = 32 * word + __builtin_ctz(bits);
      kept.entries[count] = r.x[c];
      kept.channel[count++] = static_cast<uint8_t>(c);
    }
  }
  for (; count % 16; ++count) {
    kept.entries[count] = 0;
    kept.channel[count] = 0;
  }
}

GOSSAMER_INLINE uint8_t* block_of(const KvPack& w, int64_t slot, int head) {
  return w.blocks + slot / kBlockTokens * w.block_stride + head * w.block_head_stride;
}

// The bytes of a row's chunks to their places, 32 tokens apart.
GOSSAMER_INLINE void store_chunks(const KvFormat& f, const uint8_t* bytes, int token, uint8_t* block) {
  for (int c = 0; c < f.chunks; ++c) {
    std::memcpy(block + f.values_at + (c * kBlockTokens + token) * f.bits, bytes + c * f.bits, f.bits);
  }
}

// Dense codes from `least` on, those of sparse rows in two's complement.
GOSSAMER_INLINE void store_codes(const KvFormat& f, const int32_t* codes, int least, int token, uint8_t* block) {
  if (f.has_codes()) return store_profile(f, codes, least, token, block);
  const uint64_t mask = (1u << f.bits) - 1;
  for (int c = 0; c < f.chunks; ++c) {
    uint64_t word = 0;
    for (int k = 0; k < kChunk; ++k) word |= (static_cast<uint64_t>(codes[c * kChunk + k]) & mask) << (k * f.bits);
    std::memcpy(block + f.values_at + (c * kBlockTokens + token) * f.bits, &word, f.bits);
  }
}

template <class T>
GOSSAMER_INLINE void store_floats(const KvFormat& f, const float* entries, int token, uint8_t* block) {
  T narrow[kRowBuffer];
  for (int i = 0; i < f.chunks * kChunk; i += kLanes) store(narrow + i, load(entries + i));
  store_chunks(f, reinterpret_cast<const uint8_t*>(narrow), token, block);
}

// One scale and minimum for 32 channels.
GOSSAMER_INLINE void store_groups(const KvFormat& f, const float* entries, int token, uint8_t* block) {
  alignas(64) int32_t codes[kRowBuffer];
  for (int g = 0; g < f.head_dim / kGroup; ++g) {
    const float* x = entries + g * kGroup;
    const Range range = range_of(x, kGroup, x[0]);
    const Asymmetric a = asymmetric(range.low, range.high, range.finite, f.bits);
    quantize(x, kGroup, a.low, a.factor, 0, (1 << f.bits) - 1, codes + g * kGroup);
    uint8_t* to = block + f.scales_at + (2 * g * kBlockTokens + token) * 2;
    std::memcpy(to, &a.scale, 2);
    std::memcpy(to + 2 * kBlockTokens, &a.minimum, 2);
  }
  store_codes(f, codes, 0, token, block);
}

// `entries` is followed by zeros up to a whole number of vectors.
// `weights`: of a profile's channels, or null.
GOSSAMER_INLINE void store_row(const KvFormat& f, const float* entries, const float* weights, int token,
                               uint8_t* block) {
  if (f.values == Values::f32) return store_floats<float>(f, entries, token, block);
  if (f.values == Values::f16) return store_floats<f16_t>(f, entries, token, block);
  if (f.values == Values::bf16) return store_floats<bf16_t>(f, entries, token, block);
  if (f.scales == Scales::group) return store_groups(f, entries, token, block);
  alignas(64) int32_t codes[kRowBuffer];
  const int n = f.chunks * kChunk;
  const bool coded = f.values == Values::profile, fp8 = f.values == Values::fp8;
  const uint16_t scale = coded ? encode_profile(f, entries, weights, codes)
                         : fp8 ? encode_fp8(entries, n, codes)
                               : encode_signed(entries, n, f.bits, codes);
  if (f.scales == Scales::row) std::memcpy(block + f.scales_at + token * 2, &scale, 2);
  store_codes(f, codes, coded || fp8 ? 0 : -(1 << (f.bits - 1)), token, block);
}

// One scale and minimum per channel, over the entries that stay; returned for all channels.
GOSSAMER_INLINE void channel_scales(const KvFormat& f, const Row* rows, Asymmetric* scales, uint8_t* block) {
  alignas(64) float low[kMaxHeadDim], high[kMaxHeadDim], bad[kMaxHeadDim];
  for (int c = 0; c < f.head_dim; ++c) {
    low[c] = __builtin_inff();
    high[c] = -__builtin_inff();
    bad[c] = 0;
  }
  for (int t = 0; t < kBlockTokens; ++t) {
    const auto add = [&](int c) {
      const float x = rows[t].x[c];
      low[c] = x < low[c] ? x : low[c];
      high[c] = x > high[c] ? x : high[c];
      bad[c] += x - x;  // NaN for NaN and infinity
    };
    if (!f.sparse) {
      for (int c = 0; c < f.head_dim; ++c) add(c);
      continue;
    }
    for (int word = 0; word < (f.head_dim + 31) / 32; ++word) {
      for (uint32_t bits = rows[t].mask[word]; bits != 0; bits &= bits - 1) add(32 * word + __builtin_ctz(bits));
    }
  }
  for (int c = 0; c < f.head_dim; ++c) {
    const bool used = low[c] <= high[c];
    scales[c] = asymmetric(used ? low[c] : 0, used ? high[c] : 0, bad[c] == 0, f.bits);
    std::memcpy(block + f.scales_at + c * 2, &scales[c].scale, 2);
    std::memcpy(block + f.scales_at + (f.head_dim + c) * 2, &scales[c].minimum, 2);
  }
}

GOSSAMER_INLINE void store_row_by_channel(const KvFormat& f, const Row& row, const Asymmetric* scales, int token,
                                          uint8_t* block) {
  Kept kept;
  int32_t codes[kRowBuffer];
  if (f.sparse) gather_kept(f, row, kept);
  for (int i = 0; i < f.chunks * kChunk; ++i) {
    codes[i] = 0;
    if (i >= f.keep) continue;
    const int c = f.sparse ? kept.channel[i] : i;
    const float y = (row.x[c] - scales[c].low) * scales[c].factor;
    const float most = static_cast<float>((1 << f.bits) - 1);
    codes[i] = y == y ? static_cast<int32_t>(__builtin_lrintf(y < 0 ? 0 : y > most ? most : y)) : 0;
  }
  store_codes(f, codes, 0, token, block);
}

template <class T>
void pack_tile(const KvPack& w, int64_t first, int head, Row* rows) {
  const KvFormat& f = w.format;
  const int count = w.rows - first < kBlockTokens ? static_cast<int>(w.rows - first) : kBlockTokens;
  const bool by_channel = f.scales == Scales::channel;
  for (int t = 0; t < count; ++t) {
    const int64_t slot = w.slots[first + t];
    if (slot < 0) continue;
    Row& row = rows[by_channel ? t : 0];
    load_row(static_cast<const T*>(w.x) + (first + t) * w.x_row_stride + head * w.x_head_stride, f.head_dim, row.x);
    uint8_t* block = block_of(w, slot, head);
    const int token = static_cast<int>(slot % kBlockTokens);
    if (f.sparse) {
      select_row(w, first + t, head, row);
      std::memcpy(block + token * (f.head_dim / 8), row.mask, f.head_dim / 8);
    }
    if (by_channel) continue;
    Kept kept;
    if (f.sparse) gather_kept(f, row, kept);
    const float* weights = w.weights && !f.sparse ? w.weights + head * f.head_dim : nullptr;
    store_row(f, f.sparse ? kept.entries : row.x, weights, token, block);
  }
  if (!by_channel || w.slots[first] < 0) return;
  Asymmetric scales[kMaxHeadDim];
  uint8_t* block = block_of(w, w.slots[first], head);
  channel_scales(f, rows, scales, block);
  for (int t = 0; t < count; ++t) store_row_by_channel(f, rows[t], scales, t, block);
}

}  // namespace

namespace GOSSAMER_ISA {

void kv_pack(const KvPack& work, DType dtype, int64_t begin, int64_t end) {
  Row rows[kBlockTokens];
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile / work.heads * kBlockTokens;
    const int head = static_cast<int>(tile % work.heads);
    if (dtype == DType::f32) pack_tile<float>(work, first, head, rows);
    if (dtype == DType::f16) pack_tile<f16_t>(work, first, head, rows);
    if (dtype == DType::bf16) pack_tile<bf16_t>(work, first, head, rows);
  }
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
