// From sums in registers to results in global memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "gemm/activation.cuh"
#include "gemm/hopper/work.cuh"
#include "gossamer/cuda/hopper.cuh"

namespace gossamer::cuda {

template <class T>
GOSSAMER_INLINE uint32_t pair_of(float2 values) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 x = __floats2half2_rn(values.x, values.y);
    return reinterpret_cast<const uint32_t&>(x);
  } else {
    const __nv_bfloat162 x = __floats2bfloat162_rn(values.x, values.y);
    return reinterpret_cast<const uint32_t&>(x);
  }
}

template <class T>
GOSSAMER_INLINE float wide(T x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(x);
  } else {
    return __bfloat162float(x);
  }
}

// activation(sum + bias)
template <class T, Activation A>
struct ActivationEpilogue {
  using Output = T;
  static constexpr bool kScales = false, kGated = false;
  // What each column has one of, for threads to load before the main loop and to share after it.
  GOSSAMER_INLINE float column(const GemmWork& w, int column) {
    return w.bias && column < w.n ? wide(static_cast<const T*>(w.bias)[column]) : 0.0f;
  }
  GOSSAMER_INLINE float2 bias(const GemmWork&, int) { return {}; }
  // Of two columns of a row.
  GOSSAMER_INLINE float2 values(const float* sums, const float*, float, float2 column, float2) {
    return {activated<A>(sums[0] + column.x), activated<A>(sums[1] + column.y)};
  }
};

// activation(sum of gate + bias) * (sum of up + bias)
template <class T, Activation A>
struct GatedEpilogue {
  using Output = T;
  static constexpr bool kScales = false, kGated = true;
  // Columns of up follow those of gate. What columns of gate beyond its last one get, results of which are not stored,
  // does not matter.
  GOSSAMER_INLINE float column(const GemmWork& w, int column) {
    return w.bias && column < 2 * w.n ? wide(static_cast<const T*>(w.bias)[column]) : 0.0f;
  }
  // Of two columns of a row.
  GOSSAMER_INLINE float2 values(const float* gate, const float* up, float, float2 gate_bias, float2 up_bias) {
    return {activated<A>(gate[0] + gate_bias.x) * (up[0] + up_bias.x),
            activated<A>(gate[1] + gate_bias.y) * (up[1] + up_bias.y)};
  }
};

// sum * (scale of the row * scale of the column) + bias
template <class T>
struct ScalesEpilogue {
  using Output = T;
  static constexpr bool kScales = true, kGated = false;
  GOSSAMER_INLINE float column(const GemmWork& w, int column) {
    if (w.column_scale == nullptr) return 1.0f;
    return column < w.n ? w.column_scale[static_cast<int64_t>(column) * w.column_step] : 0.0f;
  }
  // Of two columns. n is even.
  GOSSAMER_INLINE float2 bias(const GemmWork& w, int column) {
    if (w.bias == nullptr || column >= w.n) return {0.0f, 0.0f};
    const T* p = static_cast<const T*>(w.bias) + column;
    return {wide(p[0]), wide(p[1])};
  }
  template <class Sum>
  GOSSAMER_INLINE float2 values(const Sum* sums, const Sum*, float row, float2 column, float2 bias) {
    return {static_cast<float>(sums[0]) * (row * column.x) + bias.x,
            static_cast<float>(sums[1]) * (row * column.y) + bias.y};
  }
};

#if __CUDA_ARCH__ >= 900

// Writes a piece of 64 rows of a warpgroup's results to `staging` as TMA reads it: rows of 128 bytes with the 128-byte
// swizzle; rows of 96 as they are, at the price of two-way bank conflicts. sums: this thread's, from First on.
// columns: of the piece, in shared memory. column: number of the first one.
template <class Traits, int First, class Sum, int N>
GOSSAMER_INLINE void stage(const GemmWork& w, const Sum (&sums)[N], const float (&row_scale)[2], const float* columns,
                           int column, uint32_t staging) {
  using Epilogue = typename Traits::Epilogue;
  using T = typename Epilogue::Output;
  constexpr int kBytes = 2 * Traits::kPieceColumns;
  constexpr int kUp = Traits::kGated ? Traits::kTileN / 4 : 0;  // from the sums of gate to those of up
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = lane % 4;
  const uint32_t line = staging + (warp * 16 + lane % 16) * kBytes;
#pragma unroll
  for (int i = 0; i < Traits::kPieceColumns / 16; ++i) {  // 16 columns
    uint32_t words[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = 16 * i + 8 * h + 2 * t;
      const float2 c = *reinterpret_cast<const float2*>(columns + at);
      float2 b;
      if constexpr (Traits::kGated) {
        b = *reinterpret_cast<const float2*>(columns + Traits::kWidth + at);
      } else {
        b = Epilogue::bias(w, column + at);
      }
      const Sum* s = sums + First + 8 * i + 4 * h;
      words[2 * h] = pair_of<T>(Epilogue::values(s, s + kUp, row_scale[0], c, b));
      words[2 * h + 1] = pair_of<T>(Epilogue::values(s + 2, s + kUp + 2, row_scale[1], c, b));
    }
    const int chunk = 2 * i + lane / 16;
    const uint32_t to = line + ((kBytes == 128 ? chunk ^ lane % 8 : chunk) << 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

#endif

}  // namespace gossamer::cuda
