// How elements of x and of the weights are multiplied and added up, lane by lane.
#pragma once

#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

// Weights become float32 in registers; x is float32 already. 16-bit weights are for the memory's sake.
template <class T>
struct WideDot {
  using X = float;                     // as what x is read, of which `pack` writes a vector
  using Element = T;                   // of weights, arguments and results
  using Sum = F32;                     // a vector of them
  static constexpr int registers = 1;  // besides sums and weights: x
  static constexpr int step = kLanes;  // elements of a vector
  GOSSAMER_INLINE void pack(const T* from, X* to, int64_t n) {
    store(to, n < step ? load_partial(from, n) : load(from));
  }
  GOSSAMER_INLINE F32 x(const X* p) { return load(p); }
  GOSSAMER_INLINE F32 weight(const T* p) { return load(p); }
  GOSSAMER_INLINE F32 add(F32 sum, F32 x, F32 w) { return sum + x * w; }
};

#if GOSSAMER_LANES == 16
// bfloat16 by the instruction for it (avx512_bf16): two products per lane, twice as fast. Their sum is float32, as
// everywhere. Assembly, because an intrinsic would need the whole file compiled for CPUs that have it.
struct PairDot {
  using X = bf16_t;
  using Element = bf16_t;
  using Sum = F32;
  static constexpr int registers = 1;
  static constexpr int step = 2 * kLanes;
  GOSSAMER_INLINE void pack(const bf16_t* from, X* to, int64_t n) {
    if (n < step) std::memset(to, 0, step * sizeof(X));
    std::memcpy(to, from, n * sizeof(X));
  }
  GOSSAMER_INLINE F32 x(const X* p) { return load_raw<F32>(p); }
  GOSSAMER_INLINE F32 weight(const bf16_t* p) { return load_raw<F32>(p); }
  GOSSAMER_INLINE F32 add(F32 sum, F32 x, F32 w) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
  }
};
GOSSAMER_INLINE bool has_pair_dot() { return __builtin_cpu_supports("avx512bf16"); }
#endif

}  // namespace
}  // namespace gossamer
