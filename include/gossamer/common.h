// What every kernel needs and no framework provides: element types, inlining, debug checks.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GOSSAMER_INLINE static __device__ __forceinline__
#else
// CPU kernels are compiled once per instruction set, and a shared (weak) copy built with AVX-512 could
// become the one that an older CPU runs: functions are static, types in anonymous namespaces.
#define GOSSAMER_INLINE static inline __attribute__((always_inline))
#endif

#ifdef GOSSAMER_DEBUG
#include <cassert>
#define GOSSAMER_ASSERT(condition) assert(condition)
#else
#define GOSSAMER_ASSERT(condition) ((void)0)
#endif

namespace gossamer {

enum class DType { f32, f16, bf16 };

// 16-bit elements as they lie in memory; the CPU kernels convert them, CUDA has its own types.
struct f16_t {
  uint16_t bits;
};
struct bf16_t {
  uint16_t bits;
};

}  // namespace gossamer
