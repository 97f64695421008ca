// How int8 codes of x and of the weights are multiplied and added up in int32, lane by lane, without saturation.
#pragma once

#include "gossamer/cpu/vec.h"

#if GOSSAMER_LANES == 4 && defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gossamer {
namespace {

// Codes become int16; pairs of products are added up in a lane.
struct WordDot {
  using X = int16_t;                            // as what x is read
  using Element = int8_t;                       // of weights
  using Sum = I32;                              // a vector of them
  static constexpr int registers = 2;           // besides sums and weights: x and a product
  static constexpr int step = 2 * kLanes;       // codes of a vector
  static constexpr uint32_t weight_offset = 0;  // what `weight` adds to every code
  GOSSAMER_INLINE void pack(const int8_t* from, X* to) {
    const I32 wide = weight(from);
    std::memcpy(to, &wide, sizeof wide);
  }
  GOSSAMER_INLINE I32 x(const X* p) { return load_raw<I32>(p); }
  GOSSAMER_INLINE I32 weight(const int8_t* p) {
#if GOSSAMER_LANES == 16
    return reinterpret_cast<I32>(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif GOSSAMER_LANES == 8
    return reinterpret_cast<I32>(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    using Bytes = int8_t __attribute__((vector_size(2 * kLanes)));
    using Words = int16_t __attribute__((vector_size(4 * kLanes)));
    return reinterpret_cast<I32>(__builtin_convertvector(load_raw<Bytes>(p), Words));
#endif
  }
  GOSSAMER_INLINE I32 add(I32 sum, I32 x, I32 w) {
#if GOSSAMER_LANES == 16
    return sum + reinterpret_cast<I32>(_mm512_madd_epi16(reinterpret_cast<__m512i>(x), reinterpret_cast<__m512i>(w)));
#elif GOSSAMER_LANES == 8
    return sum + reinterpret_cast<I32>(_mm256_madd_epi16(reinterpret_cast<__m256i>(x), reinterpret_cast<__m256i>(w)));
#elif defined(__SSE2__)
    return sum + reinterpret_cast<I32>(_mm_madd_epi16(reinterpret_cast<__m128i>(x), reinterpret_cast<__m128i>(w)));
#else
    const I32 low = (x << 16 >> 16) * (w << 16 >> 16);
    return sum + low + (x >> 16) * (w >> 16);
#endif
  }
};

#if GOSSAMER_LANES == 16
// By the instruction for it (avx512_vnni): four products per lane, of unsigned and signed bytes. So 128 is added to the
// weights; 128 times the sum of x is what sums start below zero with. Assembly, as in dot.kernel.h.
struct ByteDot {
  using X = int8_t;
  using Element = int8_t;
  using Sum = I32;
  static constexpr int registers = 2;
  static constexpr int step = 4 * kLanes;
  static constexpr uint32_t weight_offset = 128;
  GOSSAMER_INLINE void pack(const int8_t* from, X* to) { std::memcpy(to, from, step); }
  GOSSAMER_INLINE I32 x(const X* p) { return load_raw<I32>(p); }
  GOSSAMER_INLINE I32 weight(const int8_t* p) { return load_raw<I32>(p) ^ static_cast<int32_t>(0x80808080); }
  GOSSAMER_INLINE I32 add(I32 sum, I32 x, I32 w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
  }
};
GOSSAMER_INLINE bool has_byte_dot() { return __builtin_cpu_supports("avx512vnni"); }
#endif

}  // namespace
}  // namespace gossamer
