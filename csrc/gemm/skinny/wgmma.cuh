// wgmma of 64 rows of weights times 8 to 64 rows of x, both in shared memory as wgmma.cuh says. The sums lie as there:
// rows are weights', columns are x's.
#pragma once

#include "gemm/hopper/wgmma.cuh"

namespace gossamer::cuda::hopper {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d [64, Columns] = keep * d + a b
template <class T, int Columns>
struct SkinnyWgmma;

#define GOSSAMER_NAMES_4 "%0, %1, %2, %3"
#define GOSSAMER_NAMES_8 GOSSAMER_NAMES_4 ", %4, %5, %6, %7"
#define GOSSAMER_NAMES_16 GOSSAMER_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GOSSAMER_NAMES_32                                \
  GOSSAMER_NAMES_16                                      \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
  "%26, %27, %28, %29, %30, %31"
#define GOSSAMER_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GOSSAMER_SUMS_8(i) GOSSAMER_SUMS_4(i), GOSSAMER_SUMS_4(i + 4)
#define GOSSAMER_SUMS_16(i) GOSSAMER_SUMS_8(i), GOSSAMER_SUMS_8(i + 8)
#define GOSSAMER_SUMS_32(i) GOSSAMER_SUMS_16(i), GOSSAMER_SUMS_16(i + 16)

// Columns, how many sums a thread has, and the names of the three operands that follow them.
#define GOSSAMER_FEW_WGMMA(Type, name, Columns, Sums, A, B, Keep)                                                   \
  template <>                                                                                                       \
  struct SkinnyWgmma<Type, Columns> {                                                                               \
    GOSSAMER_INLINE void multiply(float (&d)[Sums], uint64_t a, uint64_t b, int keep) {                             \
      asm volatile("{\n\t.reg .pred keep;\n\tsetp.ne.b32 keep, " Keep                                               \
                   ", 0;\n\t"                                                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #Columns "k16.f32." name "." name " {" GOSSAMER_NAMES_##Sums \
                   "}, " A ", " B ", keep, 1, 1, 0, 0;\n}"                                                          \
                   : GOSSAMER_SUMS_##Sums(0)                                                                        \
                   : "l"(a), "l"(b), "r"(keep));                                                                    \
    }                                                                                                               \
  };
#define GOSSAMER_FEW_WGMMA_OF(Type, name)                     \
  GOSSAMER_FEW_WGMMA(Type, name, 8, 4, "%4", "%5", "%6")      \
  GOSSAMER_FEW_WGMMA(Type, name, 16, 8, "%8", "%9", "%10")    \
  GOSSAMER_FEW_WGMMA(Type, name, 32, 16, "%16", "%17", "%18") \
  GOSSAMER_FEW_WGMMA(Type, name, 64, 32, "%32", "%33", "%34")

GOSSAMER_FEW_WGMMA_OF(__nv_bfloat16, "bf16")
GOSSAMER_FEW_WGMMA_OF(__half, "f16")

#undef GOSSAMER_FEW_WGMMA_OF
#undef GOSSAMER_FEW_WGMMA
#undef GOSSAMER_SUMS_32
#undef GOSSAMER_SUMS_16
#undef GOSSAMER_SUMS_8
#undef GOSSAMER_SUMS_4
#undef GOSSAMER_NAMES_32
#undef GOSSAMER_NAMES_16
#undef GOSSAMER_NAMES_8
#undef GOSSAMER_NAMES_4

#endif

}  // namespace gossamer::cuda::hopper
