// Panels of keys and values as the GEMMs read them. Include from *.kernel.cpp files alone.
#pragma once

#include "attention/masked/masked_attention.kernel.h"
#include "gemm/cpu/fold.kernel.h"
#include "gossamer/cpu/vec.h"

namespace gossamer {
namespace {

constexpr int kBlockWidth = 2 * kLanes;  // floats of a row of a block: keys, or channels of values

template <int H, int... I>
GOSSAMER_INLINE void swap_lanes(F32& a, F32& b, std::integer_sequence<int, I...>) {
  const F32 low = __builtin_shufflevector(a, b, lower_lane<H>(I)...);
  b = __builtin_shufflevector(a, b, (lower_lane<H>(I) + H)...);
  a = low;
}

// Lane i of vector j becomes lane j of vector i.
template <int H = kLanes / 2>
GOSSAMER_INLINE void transpose(F32 (&v)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) {
    if ((i & H) == 0) swap_lanes<H>(v[i], v[i + H], std::make_integer_sequence<int, kLanes>());
  }
  if constexpr (H > 1) transpose<H / 2>(v);
}

template <class T>
GOSSAMER_INLINE F32 load_some(const T* p, int n) {
  return n >= kLanes ? load(p) : load_partial(p, n);
}

// Blocks of kBlockWidth keys, each [head_dim][kBlockWidth].
template <class T>
void pack_keys(const T* from, int64_t stride, int count, int head_dim, float* to) {
  for (int key = 0; key < kPanelKeys; key += kLanes) {
    float* block = to + key / kBlockWidth * kBlockWidth * head_dim + key % kBlockWidth;
    for (int c = 0; c < head_dim; c += kLanes) {
      const int channels = head_dim - c < kLanes ? head_dim - c : kLanes;
      F32 v[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        v[i] = key + i < count ? load_some(from + (key + i) * stride + c, channels) : F32{};
      }
      transpose(v);
      for (int i = 0; i < channels; ++i) store(block + (c + i) * kBlockWidth, v[i]);
    }
  }
}

// Blocks of kBlockWidth channels, each [32 keys][kBlockWidth]; the last one has kLanes where that is enough.
template <class T>
void pack_values(const T* from, int64_t stride, int count, int head_dim, float* to) {
  for (int c = 0; c < head_dim; c += kLanes) {
    const int first = c / kBlockWidth * kBlockWidth;
    const int width = head_dim - first > kLanes ? kBlockWidth : kLanes;
    const int channels = head_dim - c < kLanes ? head_dim - c : kLanes;
    float* block = to + first * kPanelKeys + c - first;
    for (int key = 0; key < kPanelKeys; ++key) {
      store(block + key * width, key < count ? load_some(from + key * stride + c, channels) : F32{});
    }
  }
}

}  // namespace
}  // namespace gossamer
