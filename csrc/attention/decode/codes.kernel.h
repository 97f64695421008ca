// Dense rows of codes as vectors, slice by slice, straight from their cells: lanes of planes, kLanes each.
// Include from *.kernel.cpp files alone.
#pragma once

#include "attention/decode/code_planes.h"
#include "attention/shared/tiles.kernel.h"
#include "kv/rows.kernel.h"

namespace gossamer {
namespace {

constexpr float kFp8Unit = 256;  // codes of fp8 are read as numbers that are this much smaller

// ---- kLanes bytes of cells to numbers ----------------------------------------------
#if GOSSAMER_LANES == 16
GOSSAMER_INLINE __m128i load_cells(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
GOSSAMER_INLINE F32 to_floats(__m128i bytes) {
  return reinterpret_cast<F32>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}
#elif GOSSAMER_LANES == 8
GOSSAMER_INLINE __m128i load_cells(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
GOSSAMER_INLINE F32 to_floats(__m128i bytes) {
  return reinterpret_cast<F32>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
}
#endif

// All codes have 8 bits.
struct ByteCodes {
  GOSSAMER_INLINE F32 take(const uint8_t* p, const CodePlane& plane) {
#if GOSSAMER_LANES > 4
    return to_floats(_mm_sub_epi8(load_cells(p), load_cells(plane.center)));
#else
    F32 x;
    for (int k = 0; k < kLanes; ++k) x[k] = static_cast<float>(p[k] - (plane.center[0] >> k % 2 * 8 & 0xff));
    return x;
#endif
  }
};

struct FieldCodes {
  GOSSAMER_INLINE F32 take(const uint8_t* p, const CodePlane& plane) {
#if GOSSAMER_LANES > 4
    const __m128i shift = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&plane.shift));
    const __m128i fields = _mm_and_si128(_mm_srl_epi16(load_cells(p), shift), load_cells(plane.mask));
    return to_floats(_mm_sub_epi8(fields, load_cells(plane.center)));
#else
    F32 x;
    for (int k = 0; k < kLanes; ++k) {
      const int side = k % 2 * 8, field = p[k] >> plane.shift & plane.mask[0] >> side & 0xff;
      x[k] = static_cast<float>(field - (plane.center[0] >> side & 0xff));
    }
    return x;
#endif
  }
};

// As Fp8Chunk, without its factor.
struct Fp8Codes {
  GOSSAMER_INLINE F32 take(const uint8_t* p, const CodePlane&) {
#if GOSSAMER_LANES == 16
    const __m256i wide = _mm256_cvtepi8_epi16(load_cells(p));
    const __m256i bits = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
    const __m256i largest = _mm256_set1_epi16(0x3f80);
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(bits, largest), largest);
    const __m256i both = _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi16(0x7c00)));
    return reinterpret_cast<F32>(_mm512_cvtph_ps(both));
#else
    f16_t halves[kLanes];
    for (int k = 0; k < kLanes; ++k) {
      const int magnitude = p[k] & 0x7f, nan = magnitude == 0x7f ? 0x7c00 : 0;
      halves[k].bits = static_cast<uint16_t>(magnitude << 7 | nan | (p[k] & 0x80) << 8);
    }
    return load(halves);
#endif
  }
};

// Even lanes of a, odd lanes of b.
GOSSAMER_INLINE F32 alternate(float a, float b) {
  I32 odd;
  for (int k = 0; k < kLanes; ++k) odd[k] = -(k % 2);
  return select(odd, splat(b), splat(a));
}

// Rows that are decoded while they are read; Grouped: with the scales of 32 channels of a token.
template <class Codes, bool Grouped>
struct CodeRows {
  const uint8_t* values;
  const uint8_t* last;  // [32 tokens][16]: the chunk whose cells have one byte, as if they had two
  const CodePlanes* planes;
  const float* scales;  // [groups][32 tokens]

  using Cursor = int;  // the token
  __attribute__((always_inline)) Cursor at(int token) const { return token; }
  __attribute__((always_inline)) F32 take(Cursor& token, int s) const {
    const int i = s * kLanes / kPlaneLanes, byte = s * kLanes % kPlaneLanes;
    const CodePlane& plane = planes->planes[i];
    const uint8_t* chunk = i < planes->whole ? values + plane.chunk_at : last;
    const F32 x = Codes::take(chunk + token * kPlaneLanes + byte, plane);
    if constexpr (!Grouped) return x;
    return x * alternate(scales[plane.low_scale * kBlockTokens + token], scales[plane.high_scale * kBlockTokens + token]);
  }
};

// ---- what belongs to the rows of a block -------------------------------------------
struct CodeBuffers {
  uint8_t* last;  // [32][16]
  float *scales, *minima;  // row: [32] scales; group: [groups][32] each; channel: [head_dim] each
  float* rows;    // [32][lanes]
};

GOSSAMER_INLINE void widen_last_chunk(const uint8_t* chunk, uint8_t* to) {
  for (int i = 0; i < 16; ++i) {
    uint16_t cells[8], low[8], high[8];
    std::memcpy(cells, chunk + i * 16, 16);
    for (int k = 0; k < 8; ++k) {
      low[k] = cells[k] & 0xff;
      high[k] = cells[k] >> 8;
    }
    const int token = i / 8 * 16 + i % 8;
    std::memcpy(to + token * 16, low, 16);
    std::memcpy(to + (token + 8) * 16, high, 16);
  }
}

// Scales of rows and groups of all tokens as floats; minima with what codes from 0 on are more than those with a sign.
GOSSAMER_INLINE void load_token_scales(const KvFormat& f, const uint8_t* block, const CodeBuffers& b) {
  const uint8_t* at = block + f.scales_at;
  if (f.scales == Scales::row) {
    widen<f16_t>(at, kBlockTokens, b.scales);
    if (f.values == Values::fp8) for_chunks(b.scales, kBlockTokens, [](float& x) { x *= kFp8Unit; });
  }
  if (f.scales != Scales::group) return;
  const float center = static_cast<float>(1 << (f.bits - 1));
  for (int g = 0; g < f.head_dim / kGroup; ++g) {
    float *scales = b.scales + g * kBlockTokens, *minima = b.minima + g * kBlockTokens;
    widen<f16_t>(at + g * 4 * kBlockTokens, kBlockTokens, scales);
    widen<f16_t>(at + g * 4 * kBlockTokens + 2 * kBlockTokens, kBlockTokens, minima);
    for (int t = 0; t < kBlockTokens; t += kLanes) store(minima + t, load(minima + t) + load(scales + t) * center);
  }
}

// Calls `function` with the codes of a block: decoded on the way where few queries need them, else beforehand.
template <class Codes, bool Grouped, class F>
GOSSAMER_INLINE void with_codes_as(const CodeRows<Codes, Grouped>& codes, int rows, float* buffer, const F& function) {
  if (rows <= kTileRows) return function(codes);
  const int lanes = codes.planes->lanes();
  for (int t = 0; t < kBlockTokens; ++t) {
    int token = t;
    for (int s = 0; s < lanes / kLanes; ++s) store(buffer + t * lanes + s * kLanes, codes.take(token, s));
  }
  function(WholeRows{buffer, lanes});
}

template <class F>
GOSSAMER_INLINE void with_codes(const KvFormat& f, const CodePlanes& planes, const uint8_t* block, int rows,
                                const CodeBuffers& b, const F& function) {
  const uint8_t* values = block + f.values_at;
  if (planes.whole < planes.count) widen_last_chunk(values + planes.planes[planes.whole].chunk_at, b.last);
  const auto as = [&](auto codes) {
    if (f.scales == Scales::group) {
      with_codes_as<decltype(codes), true>({values, b.last, &planes, b.scales}, rows, b.rows, function);
    } else {
      with_codes_as<decltype(codes), false>({values, b.last, &planes, nullptr}, rows, b.rows, function);
    }
  };
  if (f.values == Values::fp8) {
    with_codes_as<Fp8Codes, false>({values, b.last, &planes, nullptr}, rows, b.rows, function);
  } else if (planes.bytes) {
    as(ByteCodes{});
  } else {
    as(FieldCodes{});
  }
}

}  // namespace
}  // namespace gossamer
