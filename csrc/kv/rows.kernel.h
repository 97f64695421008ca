// Values of blocks to floats on the CPU. Meaning: gossamer/ops/kv_codec.py
// Include from *.kernel.cpp files alone.
#pragma once

#include "kv/profile.kernel.h"

namespace gossamer {
namespace {

template <class T>
GOSSAMER_INLINE void widen(const uint8_t* bytes, int n, float* x) {
  for (int i = 0; i < n; i += kLanes) store(x + i, load(reinterpret_cast<const T*>(bytes) + i));
}

// ---- a chunk of 8 values -----------------------------------------------------------
struct F32Chunk {
  static constexpr int kBits = 32;
  GOSSAMER_INLINE void load(const uint8_t* p, float* x) { std::memcpy(x, p, kBits); }
};

struct F16Chunk {
  static constexpr int kBits = 16;
  GOSSAMER_INLINE void load(const uint8_t* p, float* x) {
#if GOSSAMER_LANES >= 8
    _mm256_storeu_ps(x, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    widen<f16_t>(p, kChunk, x);
#endif
  }
};

struct Bf16Chunk {
  static constexpr int kBits = 16;
  GOSSAMER_INLINE void load(const uint8_t* p, float* x) {
#if GOSSAMER_LANES >= 8
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    _mm256_storeu_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
#else
    widen<bf16_t>(p, kChunk, x);
#endif
  }
};

// Codes as numbers: signed ones, or from 0.
template <int Bits, bool Signed>
struct CodeChunk {
  static constexpr int kBits = Bits;
#if GOSSAMER_LANES >= 8
  GOSSAMER_INLINE void load(const uint8_t* p, float* x) {
    __m256i codes;
    if constexpr (Bits == 8) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
      codes = Signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
    } else {
      uint32_t word = 0;
      std::memcpy(&word, p, Bits);
      constexpr int b = Bits;  // codes go to the top of 32 bits each, then down again
      const __m256i up =
          _mm256_setr_epi32(32 - b, 32 - 2 * b, 32 - 3 * b, 32 - 4 * b, 32 - 5 * b, 32 - 6 * b, 32 - 7 * b, 32 - 8 * b);
      const __m256i top = _mm256_sllv_epi32(_mm256_set1_epi32(static_cast<int>(word)), up);
      codes = Signed ? _mm256_srai_epi32(top, 32 - Bits) : _mm256_srli_epi32(top, 32 - Bits);
    }
    _mm256_storeu_ps(x, _mm256_cvtepi32_ps(codes));
  }
#else
  GOSSAMER_INLINE void load(const uint8_t* p, float* x) {
    uint64_t word = 0;
    std::memcpy(&word, p, Bits);
    constexpr int32_t mask = (1 << Bits) - 1, sign = Signed ? 1 << (Bits - 1) : 0;
    for (int k = 0; k < kChunk; ++k) {
      const int32_t code = static_cast<int32_t>(word >> (k * Bits)) & mask;
      x[k] = static_cast<float>((code ^ sign) - sign);
    }
  }
#endif
};

// Through float16, where the same bits 7 places up are a number 2^8 times smaller, also below the normal range.
struct Fp8Chunk {
  static constexpr int kBits = 8;
  GOSSAMER_INLINE void load(const uint8_t* p, float* x) {
    uint16_t halves[kChunk];
#if GOSSAMER_LANES >= 8
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i bits = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xbf80)));
    const __m128i largest = _mm_set1_epi16(0x3f80);
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(bits, largest), largest);
    const __m128i both = _mm_or_si128(bits, _mm_and_si128(nan, _mm_set1_epi16(0x7c00)));
    std::memcpy(halves, &both, sizeof halves);
#else
    for (int k = 0; k < kChunk; ++k) {
      const int magnitude = p[k] & 0x7f, nan = magnitude == 0x7f ? 0x7c00 : 0;
      halves[k] = static_cast<uint16_t>(magnitude << 7 | nan | (p[k] & 0x80) << 8);
    }
#endif
    F16Chunk::load(reinterpret_cast<const uint8_t*>(halves), x);
    for (int k = 0; k < kChunk; ++k) x[k] *= 256;
  }
};

// ---- the stored values of tokens begin .. end-1, in rows of `stride` floats ----------
template <class Chunk>
GOSSAMER_INLINE void load_chunks(const KvFormat& f, const uint8_t* block, int begin, int end, float* x, int stride) {
  for (int c = 0; c < f.chunks; ++c) {
    const uint8_t* chunk = block + f.values_at + c * kBlockTokens * Chunk::kBits;
    for (int t = begin; t < end; ++t) Chunk::load(chunk + t * Chunk::kBits, x + (t - begin) * stride + c * kChunk);
  }
}

template <int Bits>
GOSSAMER_INLINE void load_codes(const KvFormat& f, const uint8_t* block, int begin, int end, float* x, int stride) {
  if (f.scales == Scales::row) return load_chunks<CodeChunk<Bits, true>>(f, block, begin, end, x, stride);
  return load_chunks<CodeChunk<Bits, false>>(f, block, begin, end, x, stride);
}

// Dense rows of codes as numbers: less what is in the middle of the range where they have signs.
GOSSAMER_INLINE void load_profile(const KvFormat& f, const uint8_t* block, int begin, int end, float* x, int stride) {
  const bool coded = f.values == Values::profile, is_signed = f.scales == Scales::row;
  for (int t = begin; t < end; ++t) {
    Line line;
    load_line(f, block, t, line);
    for (int g = 0; g < f.chunks; ++g) {
      float* to = x + (t - begin) * stride + g * kChunk;
      uint8_t codes[kChunk];
      const uint64_t word = group_codes(f, line, g);
      std::memcpy(codes, &word, sizeof codes);
      if (f.values == Values::fp8) {
        Fp8Chunk::load(codes, to);
        continue;
      }
      CodeChunk<8, false>::load(codes, to);
      const float levels = static_cast<float>(1 << f.group_bits[g]);
      const float middle = coded ? (levels - 1) / 2 : is_signed ? levels / 2 : 0;
      for (int k = 0; k < kChunk; ++k) to[k] -= middle;
    }
  }
}

GOSSAMER_INLINE void load_values(const KvFormat& f, const uint8_t* block, int begin, int end, float* x, int stride) {
  if (f.has_codes()) return load_profile(f, block, begin, end, x, stride);
  switch (f.values) {
    case Values::f32:
      return load_chunks<F32Chunk>(f, block, begin, end, x, stride);
    case Values::f16:
      return load_chunks<F16Chunk>(f, block, begin, end, x, stride);
    case Values::bf16:
      return load_chunks<Bf16Chunk>(f, block, begin, end, x, stride);
    case Values::fp8:
      return load_chunks<Fp8Chunk>(f, block, begin, end, x, stride);
    case Values::i8:
      return load_codes<8>(f, block, begin, end, x, stride);
    case Values::i4:
      return load_codes<4>(f, block, begin, end, x, stride);
    case Values::i3:
      return load_codes<3>(f, block, begin, end, x, stride);
    case Values::i2:
      return load_codes<2>(f, block, begin, end, x, stride);
    case Values::profile:
      return;  // above
  }
}

GOSSAMER_INLINE float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return half_value(bits);
}

// For each of n floats, in whole chunks, which the compiler turns into vectors.
template <class F>
GOSSAMER_INLINE void for_chunks(float* x, int n, const F& function) {
  for (int i = 0; i < n; i += kChunk) {
    for (int k = i; k < i + kChunk; ++k) function(x[k]);
  }
}

// The same with their scales, where these do not depend on the channel.
GOSSAMER_INLINE void load_entries(const KvFormat& f, const uint8_t* block, int begin, int end, float* x, int stride) {
  load_values(f, block, begin, end, x, stride);
  const int n = f.chunks * kChunk;
  if (f.scales == Scales::row) {
    for (int t = begin; t < end; ++t) {
      const float scale = half_at(block + f.scales_at + t * 2);
      for_chunks(x + (t - begin) * stride, n, [&](float& v) { v *= scale; });
    }
  } else if (f.scales == Scales::group) {
    for (int g = 0; g < n / kGroup; ++g) {
      for (int t = begin; t < end; ++t) {
        const uint8_t* p = block + f.scales_at + (2 * g * kBlockTokens + t) * 2;
        const float scale = half_at(p), minimum = half_at(p + 2 * kBlockTokens);
        for_chunks(x + (t - begin) * stride + g * kGroup, kGroup, [&](float& v) { v = v * scale + minimum; });
      }
    }
  }
}

// ---- whole rows ----------------------------------------------------------------------
struct ChannelScales {
  alignas(64) float scale[kRowBuffer], minimum[kRowBuffer];
};

// Zeros beyond head_dim, up to a multiple of 16.
GOSSAMER_INLINE void load_channel_scales(const KvFormat& f, const uint8_t* block, ChannelScales& s) {
  alignas(64) float both[2 * kMaxHeadDim];  // whole vectors of these end with the block
  widen<f16_t>(block + f.scales_at, 2 * f.head_dim, both);
  std::memcpy(s.scale, both, f.head_dim * sizeof(float));
  std::memcpy(s.minimum, both + f.head_dim, f.head_dim * sizeof(float));
  for (int c = f.head_dim; c % 16; ++c) s.scale[c] = s.minimum[c] = 0;
}

// The entries of a sparse row to their channels, zeros elsewhere. `scales` is null where they have theirs.
GOSSAMER_INLINE void spread_row(const KvFormat& f, const uint8_t* bitmap, const float* entries,
                                const ChannelScales* scales, float* row) {
  uint32_t mask[kMaxHeadDim / 32] = {};
  std::memcpy(mask, bitmap, f.head_dim / 8);
  std::memset(row, 0, f.head_dim * sizeof(float));
  int count = 0;
  for (int word = 0; word < (f.head_dim + 31) / 32; ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const int c = 32 * word + __builtin_ctz(bits);
      // A slot that nobody wrote may have any bits: stay inside all the same.
      const float x = entries[count < f.chunks * kChunk ? count++ : f.chunks * kChunk - 1];
      row[c] = scales ? x * scales->scale[c] + scales->minimum[c] : x;
    }
  }
}

}  // namespace
}  // namespace gossamer
