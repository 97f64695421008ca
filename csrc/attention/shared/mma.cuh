// The tensor-core instructions (mma.sync), and the shared-memory accesses around them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "gossamer/common.h"

namespace gossamer::cuda {

GOSSAMER_INLINE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

GOSSAMER_INLINE uint32_t load_shared(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
}
GOSSAMER_INLINE uint16_t load_shared16(uint32_t address) {
  uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address));
  return x;
}
GOSSAMER_INLINE uint2 load_shared2(uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address));
  return x;
}
GOSSAMER_INLINE uint4 load_shared4(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address));
  return x;
}
GOSSAMER_INLINE void store_shared(uint32_t address, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
GOSSAMER_INLINE void store_shared2(uint32_t address, const uint2& x) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(x.x), "r"(x.y) : "memory");
}
GOSSAMER_INLINE void store_shared4(uint32_t address, const uint4& x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

// Four registers of every lane: word i of lane l goes to base + 256 i + 4 l, and `address` is base + words_offset(l).
// The whole warp; one instruction on sm_90, where 8 rows of 16 bytes of a matrix are the 32 words of a register.
GOSSAMER_INLINE uint32_t words_offset(int lane) { return lane / 8 * 256 + lane % 8 * 16; }
GOSSAMER_INLINE void store_words(uint32_t address, const uint32_t (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
               "r"(x[2]), "r"(x[3])
               : "memory");
#else
  const int lane = threadIdx.x % 32;
  const uint32_t mine = address - words_offset(lane) + lane * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) store_shared(mine + 256 * i, x[i]);
#endif
}

// Keeps x in a register: where registers are short the compiler would rather compute it again, for every block.
GOSSAMER_INLINE uint32_t pinned(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Bytes of {a, b} by the four nibbles of `select`; a nibble + 8 repeats the sign of its byte.
GOSSAMER_INLINE uint32_t permute(uint32_t a, uint32_t b, uint32_t select) {
  uint32_t x;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(select));
  return x;
}

template <class T>
struct Mma;

#define GOSSAMER_MMA(T, name)                                                                                  \
  template <>                                                                                                  \
  struct Mma<T> {                                                                                              \
    /* c [16, 8] += a [16, 16] b [16, 8] */                                                                    \
    GOSSAMER_INLINE void dense(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, \
                               uint32_t b1) {                                                                  \
      asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                               \
          ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                               \
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                     \
          : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                             \
    }                                                                                                          \
    /* c [16, 8] += a [16, 32, two of four columns stored] b [32, 8] */                                        \
    GOSSAMER_INLINE void sparse(float (&c)[4], const uint4& a, const uint32_t* b, uint32_t columns) {          \
      asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32." name "." name                          \
          ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, 0x0;"           \
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                     \
          : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(columns)); \
    }                                                                                                          \
  };
GOSSAMER_MMA(__half, "f16")
GOSSAMER_MMA(__nv_bfloat16, "bf16")
#undef GOSSAMER_MMA

// x [16, 8] = a [16, 32, two of four columns stored] b [32, 8] in float16, for a permutation a: moves any 16 bits,
// but for what would be a NaN or infinity in float16 (a bfloat16 beyond 2^120), which becomes NaN.
GOSSAMER_INLINE void permute_rows(uint32_t (&x)[2], const uint4& a, const uint32_t* b, uint32_t columns) {
  asm("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16 "
      "{%0, %1}, {%2, %3, %4, %5}, {%6, %7, %8, %9}, {%11, %11}, %10, 0x0;"
      : "=r"(x[0]), "=r"(x[1])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(columns), "r"(0));
}

// The first two or the last two of every four columns.
constexpr uint32_t kFirstPair = 0x44444444u, kSecondPair = 0xeeeeeeeeu;

template <class T>
GOSSAMER_INLINE uint32_t pack2(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 x = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(x);
  } else {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(x);
  }
}

}  // namespace gossamer::cuda
