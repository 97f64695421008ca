// Float vectors of the instruction set this file is compiled for: GOSSAMER_LANES floats each, 16 for
// AVX-512, 8 for AVX2, 4 for anything else (CMakeLists.txt).
//
// GCC/Clang vector extensions give arithmetic and comparisons for every target; conversions to and
// from 16 bits need intrinsics to be fast. Include this from *.kernel.cpp files alone, and keep std::
// templates out of them: everything here has internal linkage (see GOSSAMER_INLINE).
#pragma once

#include <cstring>

#if GOSSAMER_LANES > 4
#include <immintrin.h>
#endif

#include "gossamer/common.h"

namespace gossamer {
namespace {

constexpr int kLanes = GOSSAMER_LANES;
using F32 = float __attribute__((vector_size(4 * GOSSAMER_LANES)));
using I32 = int32_t __attribute__((vector_size(4 * GOSSAMER_LANES)));
using U32 = uint32_t __attribute__((vector_size(4 * GOSSAMER_LANES)));
using U16 = uint16_t __attribute__((vector_size(2 * GOSSAMER_LANES)));

GOSSAMER_INLINE F32 splat(float x) { return F32{} + x; }
GOSSAMER_INLINE U32 bits(F32 x) { return reinterpret_cast<U32>(x); }
GOSSAMER_INLINE F32 from_bits(U32 x) { return reinterpret_cast<F32>(x); }
GOSSAMER_INLINE F32 select(I32 mask, F32 yes, F32 no) { return mask ? yes : no; }

template <class V>
GOSSAMER_INLINE V load_raw(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

GOSSAMER_INLINE U32 load_u16(const void* p) {
#if GOSSAMER_LANES == 16
  return reinterpret_cast<U32>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
#elif GOSSAMER_LANES == 8
  return reinterpret_cast<U32>(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(load_raw<U16>(p), U32);
#endif
}

// x < 65536
GOSSAMER_INLINE void store_u16(void* p, U32 x) {
#if GOSSAMER_LANES == 16
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(x)));
#elif GOSSAMER_LANES == 8
  const __m256i wide = reinterpret_cast<__m256i>(x);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0b1000);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
#else
  const U16 narrow = __builtin_convertvector(x, U16);
  std::memcpy(p, &narrow, sizeof narrow);
#endif
}

// ---- widen: kLanes elements in memory -> floats --------------------------------
GOSSAMER_INLINE F32 load(const float* p) { return load_raw<F32>(p); }

GOSSAMER_INLINE F32 load(const bf16_t* p) { return from_bits(load_u16(p) << 16); }

GOSSAMER_INLINE F32 load(const f16_t* p) {
#if GOSSAMER_LANES == 16
  return reinterpret_cast<F32>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif GOSSAMER_LANES == 8
  return reinterpret_cast<F32>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  const U32 h = load_u16(p);
  const U32 magnitude = (h & 0x7fffu) << 13;
  const U32 normal = magnitude + (112u << 23);  // rebias the exponent
  // Subnormal: 2^-14 (1 + fraction) - 2^-14, in normal numbers, which flush-to-zero leaves alone.
  const U32 subnormal = bits(from_bits(magnitude + (113u << 23)) - 0x1p-14f);
  const U32 is_subnormal = U32(magnitude < (1u << 23)), is_special = U32(magnitude >= (0x7c00u << 13));
  const U32 wide = (is_subnormal & subnormal) | (~is_subnormal & normal) | (is_special & 0x7f800000u);
  return from_bits(wide | (h & 0x8000u) << 16);
#endif
}

// ---- narrow: floats -> kLanes elements in memory, round to nearest even --------
GOSSAMER_INLINE void store(float* p, F32 x) { std::memcpy(p, &x, sizeof x); }

GOSSAMER_INLINE void store(bf16_t* p, F32 x) {
  const U32 u = bits(x);
  const U32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const U32 nan = U32(x != x);
  store_u16(p, (nan & 0x7fc0u) | (~nan & rounded));
}

GOSSAMER_INLINE void store(f16_t* p, F32 x) {
#if GOSSAMER_LANES == 16
  const __m256i narrow = _mm512_cvtps_ph(reinterpret_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &narrow, sizeof narrow);
#elif GOSSAMER_LANES == 8
  const __m128i narrow = _mm256_cvtps_ph(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &narrow, sizeof narrow);
#else
  const U32 sign = (bits(x) >> 16) & 0x8000u;
  const U32 u = bits(x) & 0x7fffffffu;
  const U32 normal = (u - (112u << 23) + 0xfffu + ((u >> 13) & 1u)) >> 13;
  const U32 subnormal = bits(from_bits(u) + 0.5f) - 0x3f000000u;  // the add rounds at 2^-24
  const U32 special = 0x7c00u | (U32(u > 0x7f800000u) & 0x200u);  // overflow, inf, NaN
  const U32 is_small = U32(u < 0x38800000u), is_special = U32(u >= 0x47800000u);
  const U32 h = (is_small & subnormal) | (is_special & special) | (~(is_small | is_special) & normal);
  store_u16(p, h | sign);
#endif
}

// ---- the same for n < kLanes elements, and for one element ---------------------
template <class T>
GOSSAMER_INLINE F32 load_partial(const T* p, int64_t n) {
  T buffer[kLanes] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return load(buffer);
}

template <class T>
GOSSAMER_INLINE void store_partial(T* p, F32 x, int64_t n) {
  T buffer[kLanes];
  store(buffer, x);
  std::memcpy(p, buffer, n * sizeof(T));
}

GOSSAMER_INLINE float sum(F32 x) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += x[i];
  return total;
}

// ---- functions -------------------------------------------------------------------
struct VecMath {
  GOSSAMER_INLINE F32 negative(F32 x, F32 yes, F32 no) { return select(x < 0.0f, yes, no); }
  GOSSAMER_INLINE F32 abs(F32 x) { return from_bits(bits(x) & 0x7fffffffu); }
  GOSSAMER_INLINE F32 rcp(F32 x) { return 1.0f / x; }

  // 0 below the normal range, inf above 88.3, NaN stays NaN.
  GOSSAMER_INLINE F32 exp(F32 x) {
    const Exponent e = split(select(x < -87.3f, splat(-87.3f), select(x > 88.3f, splat(88.3f), x)));
    const F32 finite = polynomial(e.r) * e.power;
    return select(x > 88.3f, splat(__builtin_inff()), select(x < -87.3f, F32{}, finite));
  }

  // exp(-x^2/2); 0 from |x| = 13 on, where it is below 2e-37.
  GOSSAMER_INLINE F32 gauss(F32 x) {
    const Exponent e = split(-0.5f * (x * x));
    return select(abs(x) < 13.0f, polynomial(e.r) * e.power, F32{});
  }

 protected:
  // e^r for |r| <= ln(2)/2; relative error 3e-9 before rounding.
  GOSSAMER_INLINE F32 polynomial(F32 r) {
    F32 p = splat(1.38146131e-3f);
    p = p * r + 8.36870997e-3f;
    p = p * r + 4.16683874e-2f;
    p = p * r + 1.66665207e-1f;
    p = p * r + 4.99999935e-1f;
    return (p * r + 1.0f) * r + 1.0f;
  }
  struct Exponent {
    F32 r, power;
  };
  // e^x = power * e^r with |r| <= ln(2)/2.
  GOSSAMER_INLINE Exponent split(F32 x) {
    constexpr float magic = 0x1.8p23f;  // adding it rounds to an integer
    const F32 shifted = x * 1.44269504f + magic;
    const F32 n = shifted - magic;
    const F32 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    return {r, from_bits((bits(shifted) - (0x4b400000u - 127u)) << 23)};
  }
};

// The same in fewer instructions, precise enough for 16-bit results: relative error 5e-6.
struct VecMath16 : VecMath {
  GOSSAMER_INLINE F32 gauss(F32 x) {
    const Exponent e = split(-0.5f * (x * x));
    const F32 p = (splat(4.12777465e-2f) * e.r + 1.67535144e-1f) * e.r + 5.00051161e-1f;
    return select(abs(x) < 13.0f, ((p * e.r + 1.0f) * e.r + 1.0f) * e.power, F32{});
  }

  // An estimate and one Newton step, which would make NaN of infinity: hence the bound.
  GOSSAMER_INLINE F32 rcp(F32 x) {
    const F32 finite = select(x < 1e37f, x, splat(1e37f));
#if GOSSAMER_LANES == 16
    const F32 y = reinterpret_cast<F32>(_mm512_maskz_rcp14_ps(0xffff, reinterpret_cast<__m512>(finite)));
    return y * (2.0f - finite * y);
#elif GOSSAMER_LANES == 8
    const F32 y = reinterpret_cast<F32>(_mm256_rcp_ps(reinterpret_cast<__m256>(finite)));
    return y * (2.0f - finite * y);
#else
    return 1.0f / finite;
#endif
  }
};

}  // namespace
}  // namespace gossamer
