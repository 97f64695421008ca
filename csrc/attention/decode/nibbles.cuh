// From codes of 4 bits and a bitmap to dense channel pairs without a detour: codes are moved in registers, 8 channels
// at a time.
//
// One lane owns one token. The next 8 codes of its row are a word w, funnelled out of two words of the block that lie
// in the lane's own bank. Codes that follow each other are a byte of w or of w << 4, so that one permutation of bytes
// brings those of 4 neighbouring pairs of channels to their places, and a mask clears what the bitmap has not. The
// selector, the mask and the number of codes used up come from a table of all 256 bytes that a bitmap can have; 16
// lanes, whose words are loaded at once, have 16 copies of it in banks of their own.
//
// Fields of a word that are 16 bits apart are a pair: pair k of 8 channels is channels k and k + 4 ("folded"). Queries,
// sums and blocks of a window follow that order.
#pragma once

#include "attention/decode/channel_pairs.cuh"

namespace gossamer::cuda {

constexpr int kSpreadStride = 128;                 // 16 copies of 8 bytes
constexpr int kSpreadBytes = 256 * kSpreadStride;  // for a CTA
constexpr int kNibbleStride = kBlockTokens * 4;    // bytes between the words of a token

// What one byte of a bitmap does: x is the selector and, from bit 16 on, the bits of codes used up; y is the mask.
GOSSAMER_INLINE uint2 spread_entry(uint32_t bits) {
  uint32_t select = 0, mask = 0;
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int first = bits >> (2 * i) & 1, second = bits >> (2 * i + 1) & 1;
    const int start = rank + first - 1;  // of the byte: its second code is that of the second channel
    select |= static_cast<uint32_t>(start & 1 ? 4 + (start + 1) / 2 : start / 2) << (4 * i);
    mask |= static_cast<uint32_t>(first * 0x0f | second * 0xf0) << (8 * i);
    rank += first + second;
  }
  return {select | static_cast<uint32_t>(4 * rank) << 16, mask};
}
// The table, by all threads of the CTA.
GOSSAMER_INLINE void fill_spread(uint32_t table) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < 256 * 16; i += blockDim.x) {
    const uint2 entry = spread_entry(i / 16);
    store_shared2(table + i * 8, entry);
  }
}

// (x & mask) ^ bits in one instruction, which the compiler does not make of two constants.
GOSSAMER_INLINE uint32_t masked_xor(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}

// What stands for 0 in fields i and i + 4 of 4 bits when they are made into a pair of numbers; codes with a sign are
// stored from `zero` on. 0x640x is 1024 + x in float16, 0x54x0 is 64 + x; 0x430x is 128 + x in bfloat16.
GOSSAMER_INLINE uint32_t field_base(int i, uint32_t zero, __half) {
  return i % 2 ? 0x54005400u | zero * 0x00100010u : 0x64006400u | zero * 0x00010001u;
}
GOSSAMER_INLINE uint32_t field_base(int, uint32_t zero, __nv_bfloat16) { return 0x43004300u | zero * 0x00010001u; }

// The fields plus that.
GOSSAMER_INLINE uint32_t field_sum(uint32_t f, int i, uint32_t zero, __half) {
  return masked_xor(i < 2 ? f : f >> 8, i % 2 ? 0x00f000f0u : 0x000f000fu, field_base(i, zero, __half{}));
}
GOSSAMER_INLINE uint32_t field_sum(uint32_t f, int i, uint32_t zero, __nv_bfloat16) {
  return masked_xor(f >> (4 * i), 0x000f000fu, field_base(i, zero, __nv_bfloat16{}));
}
// The fields alone, exact.
GOSSAMER_INLINE uint32_t field_pair(uint32_t f, int i, uint32_t zero, __half) {
  const __half2 x = __hsub2(as_half2(field_sum(f, i, zero, __half{})), as_half2(field_base(i, zero, __half{})));
  return reinterpret_cast<const uint32_t&>(x);
}
GOSSAMER_INLINE uint32_t field_pair(uint32_t f, int i, uint32_t zero, __nv_bfloat16) {
  const uint32_t sum = field_sum(f, i, zero, __nv_bfloat16{}), base = field_base(i, zero, __nv_bfloat16{});
  const __nv_bfloat162 x =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(sum), reinterpret_cast<const __nv_bfloat162&>(base));
  return reinterpret_cast<const uint32_t&>(x);
}

constexpr uint32_t kSignedZero = 8;  // codes with a sign are stored from here on

// What K's pairs are too large by, with a scale per row.
template <class T>
struct BasePairs {
  __device__ __forceinline__ void load(int, uint32_t (&pairs)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) pairs[i] = field_base(i % 4, kSignedZero, T{});
  }
};

// A sparse block of codes in shared memory, of 4 bits or made into such. With a scale per row K gives codes plus
// BasePairs, the same for all tokens: its scores begin with less, and are scaled in the end.
template <class T, int D, bool IsV>
struct NibblePairs {
  uint32_t bits[D / 32];
  uint32_t codes, table;  // of the lane
  uint32_t rank = 0;      // bits of codes before the next channel
  uint32_t channels;      // folded scales and minima; 0: scales are per row
  uint32_t scale;         // of V's row, twice

  // `column`: where codes of fewer bits are laid out, in words of the lane.
  __device__ __forceinline__ NibblePairs(const KvFormat& f, int chunks, uint32_t block, uint32_t column, int lane,
                                         bool valid)
      : codes(block + f.values_at + lane * 4), channels(0), scale(0) {
    load_bitmap<D>(block, lane, valid, bits);
    if (f.values != Values::i4) {
      codes = column;
      f.values == Values::i3 ? widen<Values::i3>(f, chunks, block, lane) : widen<Values::i2>(f, chunks, block, lane);
    }
    if (!IsV || !valid || f.scales != Scales::row) return;  // nor may what nobody sees be NaN
    const float x = __half2float(__ushort_as_half(load_shared16(block + f.scales_at + lane * 2)));
    scale = pack2<T>(x, x);
  }
  template <Values V>
  __device__ __forceinline__ void widen(const KvFormat& f, int chunks, uint32_t block, int lane) const {
    uint32_t from = block + f.values_at + lane * PackedChunk<V>::kBytes;
#pragma unroll 1
    for (int c = 0; c < chunks; ++c, from += kBlockTokens * PackedChunk<V>::kBytes) {
      PackedChunk<V> packed;
      packed.load(from);
      store_shared(codes + c * kNibbleStride, packed.nibbles(f.scales == Scales::row));
    }
  }

  __device__ __forceinline__ void load(int number, uint32_t (&pairs)[16]) {
    const uint32_t word = bits[0];
#pragma unroll
    for (int w = 0; w + 1 < D / 32; ++w) bits[w] = bits[w + 1];
    uint32_t f[4], mask[4];
    place(word, f, mask);
    if (channels != 0) {
      scale_channels(channels + number * 64, f, mask, pairs);
    } else {
      scale_row(f, mask, pairs);
    }
  }

  // Codes of 32 channels at their places, but for the masks.
  __device__ __forceinline__ void place(uint32_t word, uint32_t (&f)[4], uint32_t (&mask)[4]) {
    uint32_t select[4], w[4];
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const uint2 entry = load_shared2(__dp4a(word, static_cast<uint32_t>(kSpreadStride) << (8 * byte), table));
      select[byte] = entry.x, mask[byte] = entry.y;
    }
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t at = codes + (rank & ~31u) * (kNibbleStride / 32);
      w[byte] = __funnelshift_r(load_shared(at), load_shared(at + kNibbleStride), rank);
      rank += select[byte] >> 16;
    }
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) f[byte] = permute(w[byte], w[byte] << 4, select[byte]);
  }

  __device__ __forceinline__ void scale_row(const uint32_t (&f)[4], const uint32_t (&mask)[4],
                                            uint32_t (&pairs)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t kept = f[i / 4] & mask[i / 4];
      pairs[i] = IsV ? multiply2(field_pair(kept, i % 4, kSignedZero, T{}), scale, T{})
                     : field_sum(kept, i % 4, kSignedZero, T{});
    }
  }

  __device__ __forceinline__ void scale_channels(uint32_t at, const uint32_t (&f)[4], const uint32_t (&mask)[4],
                                                 uint32_t (&pairs)[16]) const {
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      ScaledByChannel<T, D> scaled{at};
      scaled.begin(byte);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // The top bits of fields i and i + 4, each 16 times.
        constexpr uint32_t kFields[4] = {0xeeccu, 0xaa88u, 0xffddu, 0xbb99u};
        pairs[4 * byte + i] =
            scaled(i, field_pair(f[byte], i, 0, __half{})) & permute(mask[byte], mask[byte] << 4, kFields[i]);
      }
    }
  }
};

}  // namespace gossamer::cuda
