// wgmma: tiles of 64 rows in the registers of a warpgroup += A (64 rows) times B, both in shared memory as TMA's
// 128-byte swizzle leaves them: rows of 128 bytes along k.
//
// Thread t of the warpgroup holds rows 16 (t / 32) + t % 32 / 4 and + 8, columns 8 j + 2 (t % 4) and + 1: sums 4 j and
// 4 j + 1 are of the first row, 4 j + 2 and 4 j + 3 of the second.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "gossamer/common.h"

namespace gossamer::cuda::hopper {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A matrix in shared memory that begins at a multiple of 1024 bytes: 8 rows to 1024 bytes, swizzle of 128 bytes. The
// next 32 bytes along k are 2 further.
GOSSAMER_INLINE uint64_t descriptor(uint32_t address) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 16) | ((address & 0x3ffffu) >> 4);
}

GOSSAMER_INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GOSSAMER_INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `Pending` groups of wgmma are under way.
template <int Pending>
GOSSAMER_INLINE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Registers as assembly names them, and as operands of it.
#define GOSSAMER_NAMES_64                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GOSSAMER_NAMES_96                                                  \
  GOSSAMER_NAMES_64                                                        \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "    \
  "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, " \
  "%91, %92, %93, %94, %95"
#define GOSSAMER_4(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define GOSSAMER_16(c, d, i) \
  GOSSAMER_4(c, d, i), GOSSAMER_4(c, d, i + 4), GOSSAMER_4(c, d, i + 8), GOSSAMER_4(c, d, i + 12)
#define GOSSAMER_64(c, d, i) \
  GOSSAMER_16(c, d, i), GOSSAMER_16(c, d, i + 16), GOSSAMER_16(c, d, i + 32), GOSSAMER_16(c, d, i + 48)

// Type, elements along k in 32 bytes, sums, its letter for operands, the types' names, and what follows `keep`: a
// product by 1 of A and B, no transposition.
#define GOSSAMER_WGMMA(Type, K, Sum, c, names, rest)                                                                 \
  template <>                                                                                                        \
  struct Wgmma<Type> {                                                                                               \
    using Accumulator = Sum;                                                                                         \
    /* d [64, 128] = keep * d + a b; d: 64 sums from First on */                                                     \
    template <int First, int N>                                                                                      \
    GOSSAMER_INLINE void n128(Sum (&d)[N], uint64_t a, uint64_t b, int keep) {                                       \
      asm volatile(                                                                                                  \
          "{\n\t.reg .pred keep;\n\tsetp.ne.b32 keep, %66, 0;\n\t"                                                   \
          "wgmma.mma_async.sync.aligned.m64n128k" K "." names " {" GOSSAMER_NAMES_64 "}, %64, %65, keep" rest ";\n}" \
          : GOSSAMER_64(c, d, First)                                                                                 \
          : "l"(a), "l"(b), "r"(keep));                                                                              \
    }                                                                                                                \
    /* d [64, 192]: 96 sums */                                                                                       \
    template <int First, int N>                                                                                      \
    GOSSAMER_INLINE void n192(Sum (&d)[N], uint64_t a, uint64_t b, int keep) {                                       \
      asm volatile(                                                                                                  \
          "{\n\t.reg .pred keep;\n\tsetp.ne.b32 keep, %98, 0;\n\t"                                                   \
          "wgmma.mma_async.sync.aligned.m64n192k" K "." names " {" GOSSAMER_NAMES_96 "}, %96, %97, keep" rest ";\n}" \
          : GOSSAMER_64(c, d, First), GOSSAMER_16(c, d, First + 64), GOSSAMER_16(c, d, First + 80)                   \
          : "l"(a), "l"(b), "r"(keep));                                                                              \
    }                                                                                                                \
  };

template <class T>
struct Wgmma;
GOSSAMER_WGMMA(__nv_bfloat16, "16", float, "+f", "f32.bf16.bf16", ", 1, 1, 0, 0")
GOSSAMER_WGMMA(__half, "16", float, "+f", "f32.f16.f16", ", 1, 1, 0, 0")
GOSSAMER_WGMMA(__nv_fp8_e4m3, "32", float, "+f", "f32.e4m3.e4m3", ", 1, 1")
GOSSAMER_WGMMA(int8_t, "32", int32_t, "+r", "s32.s8.s8", "")

#undef GOSSAMER_WGMMA
#undef GOSSAMER_64
#undef GOSSAMER_16
#undef GOSSAMER_4
#undef GOSSAMER_NAMES_96
#undef GOSSAMER_NAMES_64

#endif

}  // namespace gossamer::cuda::hopper
