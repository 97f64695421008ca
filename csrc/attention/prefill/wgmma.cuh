// wgmma for attention: sums of 64 queries in the registers of a warpgroup += weights in registers times values in
// shared memory; and waits that name the registers which they wait for.
//
// Values are rows of keys, 128 bytes (64 channels) each, as TMA's 128-byte swizzle leaves them: contiguous along
// wgmma's N, which is what its transposition of B is for. Weights are the first operand as scores leave the
// registers of m64n128: of 16 keys, scores 8 k to 8 k + 7 of a thread, rounded in pairs.
#pragma once

#include "gemm/hopper/wgmma.cuh"

namespace gossamer::cuda::hopper {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Keys from `address` on, a multiple of 1024 bytes: 8 of them to 1024 bytes, the next 64 channels `half` bytes
// further. 16 keys are 2048 bytes, 128 in the descriptor.
GOSSAMER_INLINE uint64_t values_descriptor(uint32_t address, uint32_t half) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{half >> 4} << 16) | ((address & 0x3ffffu) >> 4);
}

// Registers as assembly names them, and as operands of it.
#define GOSSAMER_NAMES_32                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GOSSAMER_NAMES_64                                                            \
  GOSSAMER_NAMES_32                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GOSSAMER_8(c, d, i) \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define GOSSAMER_32(c, d, i) \
  GOSSAMER_8(c, d, i), GOSSAMER_8(c, d, i + 8), GOSSAMER_8(c, d, i + 16), GOSSAMER_8(c, d, i + 24)
#define GOSSAMER_64(c, d, i) GOSSAMER_32(c, d, i), GOSSAMER_32(c, d, i + 32)

// What follows the operands: add to what is there; a product by 1 of both, B transposed.
#define GOSSAMER_WEIGHTED(Type, names)                                                                    \
  template <>                                                                                             \
  struct Weighted<Type> {                                                                                 \
    /* o [64, 128] += weights [64, 16] values [16, 128]; weights: 4 from First on */                      \
    template <int First>                                                                                  \
    GOSSAMER_INLINE void add(float (&o)[64], const uint32_t (&p)[32], uint64_t values) {                  \
      asm volatile(                                                                                       \
          "{\n\t.reg .pred keep;\n\tsetp.ne.b32 keep, %69, 0;\n\t"                                        \
          "wgmma.mma_async.sync.aligned.m64n128k16.f32." names " {" GOSSAMER_NAMES_64                     \
          "}, {%64, %65, %66, %67}, %68, keep, 1, 1, 1;\n}"                                               \
          : GOSSAMER_64("+f", o, 0)                                                                       \
          : "r"(p[First]), "r"(p[First + 1]), "r"(p[First + 2]), "r"(p[First + 3]), "l"(values), "r"(1)); \
    }                                                                                                     \
    /* o [64, 64] */                                                                                      \
    template <int First>                                                                                  \
    GOSSAMER_INLINE void add(float (&o)[32], const uint32_t (&p)[32], uint64_t values) {                  \
      asm volatile(                                                                                       \
          "{\n\t.reg .pred keep;\n\tsetp.ne.b32 keep, %37, 0;\n\t"                                        \
          "wgmma.mma_async.sync.aligned.m64n64k16.f32." names " {" GOSSAMER_NAMES_32                      \
          "}, {%32, %33, %34, %35}, %36, keep, 1, 1, 1;\n}"                                               \
          : GOSSAMER_32("+f", o, 0)                                                                       \
          : "r"(p[First]), "r"(p[First + 1]), "r"(p[First + 2]), "r"(p[First + 3]), "l"(values), "r"(1)); \
    }                                                                                                     \
  };

template <class T>
struct Weighted;
GOSSAMER_WEIGHTED(__nv_bfloat16, "bf16.bf16")
GOSSAMER_WEIGHTED(__half, "f16.f16")

// Until at most `Pending` groups are under way, those of the scores not among them. Naming the registers keeps the
// compiler from reading them before.
template <int Pending>
GOSSAMER_INLINE void wait_for_scores(float (&s)[64]) {
  asm volatile("wgmma.wait_group.sync.aligned %64;" : GOSSAMER_64("+f", s, 0) : "n"(Pending) : "memory");
}
// Computed before what follows.
GOSSAMER_INLINE void settle(float (&s)[64]) { asm volatile("" : GOSSAMER_64("+f", s, 0)::"memory"); }
// Until all are done, and the weights may be written again.
GOSSAMER_INLINE void wait_for_sums(float (&o)[64], uint32_t (&p)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : GOSSAMER_64("+f", o, 0), GOSSAMER_32("+r", p, 0)::"memory");
}
GOSSAMER_INLINE void wait_for_sums(float (&o)[32], uint32_t (&p)[32]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : GOSSAMER_32("+f", o, 0), GOSSAMER_32("+r", p, 0)::"memory");
}

#undef GOSSAMER_WEIGHTED
#undef GOSSAMER_64
#undef GOSSAMER_32
#undef GOSSAMER_8
#undef GOSSAMER_NAMES_64
#undef GOSSAMER_NAMES_32

#endif

}  // namespace gossamer::cuda::hopper
