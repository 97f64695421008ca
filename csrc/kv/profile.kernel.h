// Dense rows of codes on the CPU: the fields of their lines, the cells of a block, rows with the steps of a
// calibration. Where bits lie: gossamer/ops/kv_profile.py; meaning: gossamer/ops/kv_codec.py
// Include from *.kernel.cpp files alone.
#pragma once

#include "kv/codec.kernel.h"

namespace gossamer {
namespace {

// Bits [8 i, 8 i + 8) of the lines of all 8 columns are the bytes of word i. Little-endian, like every
// machine this runs on.
using Line = uint64_t[kMaxGroups];

GOSSAMER_INLINE uint64_t in_each_byte(int width) { return 0x0101010101010101u * ((1u << width) - 1); }

GOSSAMER_INLINE void put_field(Line& line, int at, int width, uint64_t codes) {
  line[at / 8] |= (codes & in_each_byte(width)) << (at % 8);
}

GOSSAMER_INLINE uint64_t take_field(const Line& line, int at, int width) {
  return line[at / 8] >> (at % 8) & in_each_byte(width);
}

// ---- between lines and a block --------------------------------------------------------
GOSSAMER_INLINE void store_line(const KvFormat& f, const Line& line, int token, uint8_t* block) {
  const int words = f.row_bytes / 8;
  uint8_t* values = block + f.values_at;
  for (int i = 0; i + 1 < words; i += 2) {
    uint8_t* cells = values + code_address(f.row_bytes, token, i, 0);
#if GOSSAMER_LANES >= 8
    const __m128i lower = _mm_cvtsi64_si128(static_cast<int64_t>(line[i]));
    const __m128i upper = _mm_cvtsi64_si128(static_cast<int64_t>(line[i + 1]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(cells), _mm_unpacklo_epi8(lower, upper));
#else
    for (int k = 0; k < kChunk; ++k) {
      cells[2 * k] = static_cast<uint8_t>(line[i] >> (8 * k));
      cells[2 * k + 1] = static_cast<uint8_t>(line[i + 1] >> (8 * k));
    }
#endif
  }
  if (words % 2 == 0) return;
  uint8_t* cells = values + code_address(f.row_bytes, token, words - 1, 0);
  for (int k = 0; k < kChunk; ++k) cells[2 * k] = static_cast<uint8_t>(line[words - 1] >> (8 * k));
}

GOSSAMER_INLINE void load_line(const KvFormat& f, const uint8_t* block, int token, Line& line) {
  const int words = f.row_bytes / 8;
  const uint8_t* values = block + f.values_at;
  for (int i = 0; i + 1 < words; i += 2) {
    const uint8_t* cells = values + code_address(f.row_bytes, token, i, 0);
#if GOSSAMER_LANES >= 8
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(cells));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(line + i), _mm_shuffle_epi8(both, order));
#else
    line[i] = line[i + 1] = 0;
    for (int k = 0; k < kChunk; ++k) {
      line[i] |= static_cast<uint64_t>(cells[2 * k]) << (8 * k);
      line[i + 1] |= static_cast<uint64_t>(cells[2 * k + 1]) << (8 * k);
    }
#endif
  }
  if (words % 2 == 0) return;
  const uint8_t* cells = values + code_address(f.row_bytes, token, words - 1, 0);
  line[words - 1] = 0;
  for (int k = 0; k < kChunk; ++k) line[words - 1] |= static_cast<uint64_t>(cells[2 * k]) << (8 * k);
}

// ---- between codes and lines ----------------------------------------------------------

// Codes of a row, from `least` on, into its slot.
GOSSAMER_INLINE void store_profile(const KvFormat& f, const int32_t* codes, int least, int token, uint8_t* block) {
  Line line = {};
  for (int g = 0; g < f.head_dim / kChunk; ++g) {
    const int bits = f.group_bits[g];
    if (bits == 0) continue;
    uint8_t bytes[kChunk];
    for (int k = 0; k < kChunk; ++k) bytes[k] = static_cast<uint8_t>(codes[g * kChunk + k] - least);
    uint64_t word;
    std::memcpy(&word, bytes, sizeof word);
    put_field(line, f.group_at[g], bits == 3 ? 2 : bits, word);
    if (bits == 3) put_field(line, f.group_third[g], 1, word >> 2);
  }
  store_line(f, line, token, block);
}

// The codes of group g, a byte each, from 0 on.
GOSSAMER_INLINE uint64_t group_codes(const KvFormat& f, const Line& line, int g) {
  const int bits = f.group_bits[g];
  if (bits == 3) return take_field(line, f.group_at[g], 2) | take_field(line, f.group_third[g], 1) << 2;
  return bits == 0 ? 0 : take_field(line, f.group_at[g], bits);
}

// ---- rows with the steps of a calibration -----------------------------------------------

// The root mean square of the row in standard deviations of its channels, as float16; in float64, so that the
// order of the sum does not show.
GOSSAMER_INLINE uint16_t profile_unit(const KvFormat& f, const float* x) {
  double squares[kChunk] = {}, total = 0;
  int channels = 0;
  for (int g = 0; g < f.head_dim / kChunk; ++g) {
    const double step = best_step(f.group_bits[g]);
    if (f.group_bits[g] == 0) continue;
    channels += kChunk;
    for (int k = 0; k < kChunk; ++k) {
      const double y = x[g * kChunk + k] * step;
      squares[k] += y * y;
    }
  }
  for (int k = 0; k < kChunk; ++k) total += squares[k];
  const uint16_t unit = half_bits(static_cast<float>(__builtin_sqrt(total / channels)));
  return finite_half(unit) ? unit : kHalfNan;
}

// The scale with the least square error for these codes, channels weighted if there are weights, as float16.
GOSSAMER_INLINE uint16_t fitted_scale(const KvFormat& f, const float* x, const float* weights, const int32_t* codes) {
  double products[kChunk] = {}, squares[kChunk] = {}, product = 0, square = 0;
  for (int g = 0; g < f.head_dim / kChunk; ++g) {
    if (f.group_bits[g] == 0) continue;
    const double middle = ((1 << f.group_bits[g]) - 1) * 0.5;
    for (int k = 0; k < kChunk; ++k) {
      const double value = codes[g * kChunk + k] - middle, weight = weights ? weights[g * kChunk + k] : 1.0f;
      products[k] += x[g * kChunk + k] * value * weight;
      squares[k] += value * value * weight;
    }
  }
  for (int k = 0; k < kChunk; ++k) product += products[k], square += squares[k];
  const uint16_t scale = half_bits(static_cast<float>(product / square));
  return finite_half(scale) ? scale : kHalfNan;
}

// Codes of the intervals that entries are in; returns the bits of the scale, 1 where there is none.
GOSSAMER_INLINE uint16_t encode_profile(const KvFormat& f, const float* x, const float* weights, int32_t* codes) {
  const uint16_t unit = f.scales == Scales::row ? profile_unit(f, x) : half_bits(1);
  const float factor = reciprocal(half_value(unit));
  alignas(64) float halves[kRowBuffer] = {};  // of the number of codes
  for (int g = 0; g < f.head_dim / kChunk; ++g) {
    const float half = static_cast<float>(1 << f.group_bits[g] >> 1);
    for (int k = 0; k < kChunk; ++k) halves[g * kChunk + k] = half;
  }
  for (int i = 0; i < f.head_dim; i += kLanes) {
    const F32 half = load(halves + i), last = half - 0.5f;
    F32 y = load(x + i) * factor;
    y = select(y == y, y, F32{});
    y = select(y < -half, -half, select(y > last, last, y));
    const I32 toward_zero = __builtin_convertvector(y, I32);
    const I32 is_above = __builtin_convertvector(toward_zero, F32) > y;  // -1 where it is
    const I32 code = toward_zero + is_above + __builtin_convertvector(half, I32);
    std::memcpy(codes + i, &code, sizeof code);
  }
  if (f.scales != Scales::row || unit == kHalfNan || unit == 0) return unit;
  return fitted_scale(f, x, weights, codes);
}

}  // namespace
}  // namespace gossamer
