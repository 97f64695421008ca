// Where the channel pairs of a block come from, 32 channels (a word) at a time. One lane owns one token: pairs[i] are
// its channels 32 w + 2 i and + 1.
#pragma once

#include "attention/decode/expand.cuh"

namespace gossamer::cuda {

// The bitmap of the lane's token, of a block in shared memory; none of it unless the token is `valid`.
template <int D>
GOSSAMER_INLINE void load_bitmap(uint32_t block, int lane, bool valid, uint32_t (&bits)[D / 32]) {
  if constexpr (D == 64) {
    const uint2 x = load_shared2(block + lane * 8);
    bits[0] = x.x, bits[1] = x.y;
  } else {
    static_assert(D == 128);
    const uint4 x = load_shared4(block + lane * 16);
    bits[0] = x.x, bits[1] = x.y, bits[2] = x.z, bits[3] = x.w;
  }
  if (valid) return;
#pragma unroll
  for (int w = 0; w < D / 32; ++w) bits[w] = 0;
}

// A compressed block whose values lie in the lane's column. Any: or codes, which have scales of channels.
template <class T, int D, bool Any>
struct SparsePairs {
  uint32_t bits[D / 32];
  uint32_t at;        // in the column
  uint32_t channels;  // where scales and minima lie; 0: values need none

  __device__ __forceinline__ SparsePairs(uint32_t block, uint32_t column, uint32_t channels, int lane, bool valid)
      : at(column), channels(channels) {
    load_bitmap<D>(block, lane, valid, bits);
  }

  // The words in order.
  __device__ __forceinline__ void load(int number, uint32_t (&pairs)[16]) {
    const uint32_t word = bits[0];
#pragma unroll
    for (int w = 0; w + 1 < D / 32; ++w) bits[w] = bits[w + 1];
    if (Any && channels != 0) {
      expand_word(word, at, ScaledByChannel<T, D>{channels + number * 64}, pairs);
    } else {
      expand_word(word, at, AsTheyAre{}, pairs);
    }
  }
};

// A dense block of 16-bit values in shared memory.
struct StagedPairs {
  uint32_t lane_values;
  bool valid;

  __device__ __forceinline__ StagedPairs(uint32_t block, int lane, bool valid)
      : lane_values(block + lane * 16), valid(valid) {}

  __device__ __forceinline__ void load(int w, uint32_t (&pairs)[16]) const {
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      const uint4 x = load_shared4(lane_values + (4 * w + chunk) * kBlockTokens * 16);
      pairs[4 * chunk] = valid ? x.x : 0, pairs[4 * chunk + 1] = valid ? x.y : 0;
      pairs[4 * chunk + 2] = valid ? x.z : 0, pairs[4 * chunk + 3] = valid ? x.w : 0;
    }
  }
};

// A dense block of 4-bit codes in shared memory, with a scale and a minimum per channel.
template <class T, int D>
struct CodedPairs {
  uint32_t lane_codes, channels;
  bool valid;

  __device__ __forceinline__ CodedPairs(const KvFormat& f, uint32_t block, int lane, bool valid)
      : lane_codes(block + lane * 16), channels(block + f.scales_at), valid(valid) {}

  // A chunk is 4 groups of 8 channels, in fields of 4 bits: word i has channels 2 i and 2 i + 1 of each.
  __device__ __forceinline__ void load(int w, uint32_t (&pairs)[16]) const {
    const uint4 cells = load_shared4(lane_codes + w * kCodeChunk);
    const uint32_t words[4] = {cells.x, cells.y, cells.z, cells.w};
#pragma unroll
    for (int group = 0; group < 4; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // 0x64xx is 1024 + xx in float16.
        const uint32_t two = (words[i] >> (4 * group) & 0x000f000fu) | 0x64006400u;
        const uint32_t at = channels + (32 * w + 8 * group + 2 * i) * 2;
        const __half2 code = __hsub2(as_half2(two), __float2half2_rn(1024.0f));
        const __half2 x = __hfma2(code, as_half2(load_shared(at)), as_half2(load_shared(at + 2 * D)));
        pairs[4 * group + i] = valid ? from_half2(reinterpret_cast<const uint32_t&>(x), T{}) : 0;
      }
    }
  }
};

// Of 8 channels k and k + 4 side by side ("folded"), instead of 2 k and 2 k + 1.
GOSSAMER_INLINE uint4 folded(const uint4& x) {
  return {permute(x.x, x.z, 0x5410), permute(x.x, x.z, 0x7632), permute(x.y, x.w, 0x5410), permute(x.y, x.w, 0x7632)};
}
// The channel at a place of 8 in that order.
GOSSAMER_INLINE int unfolded(int place) { return place / 2 + place % 2 * 4; }

// A dense block of 16-bit values in global memory: the few blocks of a window are not worth a stage.
template <bool Folded>
struct GlobalPairs {
  const uint8_t* lane_values;
  bool valid;

  __device__ __forceinline__ GlobalPairs(const uint8_t* block, int lane, bool valid)
      : lane_values(block + lane * 16), valid(valid) {
    asm volatile("" : "+l"(lane_values));  // or else 32 addresses are kept, one for each load
  }

  __device__ __forceinline__ void load(int w, uint32_t (&pairs)[16]) const {
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      uint4 x{};
      if (valid) x = __ldcs(reinterpret_cast<const uint4*>(lane_values + (4 * w + chunk) * kBlockTokens * 16));
      if (Folded) x = folded(x);
      pairs[4 * chunk] = x.x, pairs[4 * chunk + 1] = x.y, pairs[4 * chunk + 2] = x.z, pairs[4 * chunk + 3] = x.w;
    }
  }
};

}  // namespace gossamer::cuda
