// One lane's row into its slot: dense floats, and entries of sparse rows without scales, with one per row or
// per channel.
#pragma once

#include <type_traits>

#include "kv/channels.cuh"
#include "kv/codec.cuh"
#include "kv/tile.cuh"

namespace gossamer::cuda {

using WritePlace = Place<uint8_t>;

// 8 values of b bits, as b bytes.
template <class Store>
GOSSAMER_INLINE void store_word(uint8_t* to, uint64_t word) {
  *reinterpret_cast<Store*>(to) = static_cast<Store>(word);
}

GOSSAMER_INLINE void store_codes(const KvFormat& f, const WritePlace& place, int chunk, uint64_t word) {
  uint8_t* to = place.block + f.values_at + (chunk * kBlockTokens + place.token) * f.bits;
  if (f.bits == 8) return store_word<uint64_t>(to, word);
  if (f.bits == 4) return store_word<uint32_t>(to, word);
  if (f.bits == 2) return store_word<uint16_t>(to, word);
  for (int i = 0; i < 3; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
}

// Values without scales.
template <class V, class T, class Channels>
GOSSAMER_INLINE void store_floats(const KvFormat& f, const T* row, Channels channels, const WritePlace& place) {
  V* to = reinterpret_cast<V*>(place.block + f.values_at) + place.token * kChunk;
  for (int chunk = 0; chunk < f.chunks; ++chunk, to += kBlockTokens * kChunk) {
    alignas(16) V values[kChunk];
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      const bool stays = chunk * kChunk + k < f.keep;
      if constexpr (std::is_same_v<V, T>) {
        values[k] = stays ? row[channels.next()] : V(0.0f);
      } else {
        values[k] = V(stays ? static_cast<float>(row[channels.next()]) : 0.0f);
      }
    }
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(values)) / 16; ++i) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(values)[i];
    }
  }
}

// Calls code(channel, x) for every entry that stays and stores what it returns.
template <class T, class Channels, class Code>
GOSSAMER_INLINE void store_coded(const KvFormat& f, const T* row, Channels channels, const WritePlace& place,
                                 const Code& code) {
  const uint32_t mask = (1u << f.bits) - 1;
  for (int chunk = 0; chunk < f.chunks; ++chunk) {
    uint64_t word = 0;
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      if (chunk * kChunk + k >= f.keep) break;
      const int c = channels.next();
      word |= static_cast<uint64_t>(code(c, static_cast<float>(row[c])) & mask) << (k * f.bits);
    }
    store_codes(f, place, chunk, word);
  }
}

// One scale for the row.
template <class T, class Channels>
GOSSAMER_INLINE void store_scaled(const KvFormat& f, const T* row, Channels channels, const WritePlace& place) {
  Range range(0.0f, 0.0f);  // rows are padded with zeros
  Channels again = channels;
  for (int i = 0; i < f.keep; ++i) range.add(static_cast<float>(row[again.next()]));
  const bool fp8 = f.values == Values::fp8;
  const Coding coding = fp8 ? fp8_coding(range) : signed_coding(range, f.bits);
  reinterpret_cast<uint16_t*>(place.block + f.scales_at)[place.token] = coding.scale_bits;
  const int most = 1 << (f.bits - 1);
  if (fp8) {
    const bool valid = coding.scale_bits != kHalfNan;
    store_coded(f, row, channels, place, [&](int, float x) { return valid ? fp8_bits(x, coding.factor) : 0; });
  } else {
    store_coded(f, row, channels, place,
                [&](int, float x) { return quantize(x, 0.0f, coding.factor, -most, most - 1); });
  }
}

// What a warp shares to scale channels over its 32 tokens; a whole block.
struct ChannelScratch {
  uint32_t* masks;  // [32 tokens][words]
  float2* coding;   // [head_dim] minimum, factor
};

// One scale and minimum per channel over the tokens where it stays. Lanes own channels for a while.
template <class T>
GOSSAMER_INLINE void scale_channels(const KvFormat& f, const Tile<T>& tile, const ChannelScratch& scratch, int words,
                                    uint8_t* block) {
  __syncwarp();
  for (int c = threadIdx.x; c < f.head_dim; c += 32) {
    Range range(__int_as_float(kInfinity), -__int_as_float(kInfinity));
    for (int t = 0; t < kBlockTokens; ++t) {
      const bool stays = scratch.masks[t * words + c / 32] >> (c % 32) & 1;
      if (stays) range.add(static_cast<float>(tile.row(t)[c]));
    }
    if (!(range.low <= range.high) && range.finite) range = Range(0.0f, 0.0f);  // in no row
    const Coding coding = asymmetric_coding(range, f.bits);
    uint16_t* scales = reinterpret_cast<uint16_t*>(block + f.scales_at);
    scales[c] = coding.scale_bits;
    scales[f.head_dim + c] = coding.minimum_bits;
    scratch.coding[c] = {coding.minimum, coding.factor};
  }
  __syncwarp();
}

template <class T, class Channels>
GOSSAMER_INLINE void store_by_channel(const KvFormat& f, const T* row, Channels channels, const WritePlace& place,
                                      const ChannelScratch& scratch) {
  const int most = (1 << f.bits) - 1;
  store_coded(f, row, channels, place,
              [&](int c, float x) { return quantize(x, scratch.coding[c].x, scratch.coding[c].y, 0, most); });
}

template <int Words>
GOSSAMER_INLINE void store_bitmap(const KvFormat& f, const uint32_t (&selected)[Words], const WritePlace& place) {
  uint8_t* to = place.block + place.token * (f.head_dim / 8);
  if (f.head_dim == 32 * Words && Words % 4 == 0) {
#pragma unroll
    for (int g = 0; g + 3 < Words; g += 4) {
      *reinterpret_cast<uint4*>(to + 4 * g) = {selected[g], selected[g + 1], selected[g + 2], selected[g + 3]};
    }
  } else if (f.head_dim == 32 * Words) {
#pragma unroll
    for (int g = 0; g < Words; ++g) *reinterpret_cast<uint32_t*>(to + 4 * g) = selected[g];
  } else {
#pragma unroll
    for (int g = 0; g < Words; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * g + i < f.head_dim / 8) to[4 * g + i] = static_cast<uint8_t>(selected[g] >> (8 * i));
      }
    }
  }
}

template <class T, class Channels>
GOSSAMER_INLINE void store_row(const KvFormat& f, const T* row, const Channels& channels, const WritePlace& place) {
  switch (f.values) {
    case Values::f32:
      return store_floats<float>(f, row, channels, place);
    case Values::f16:
      return store_floats<__half>(f, row, channels, place);
    case Values::bf16:
      return store_floats<__nv_bfloat16>(f, row, channels, place);
    default:
      if constexpr (!std::is_same_v<Channels, Counter>) store_scaled(f, row, channels, place);
  }
}

}  // namespace gossamer::cuda
