// From packed values and a bitmap to dense channel pairs in registers: the heart of decoding from compressed blocks.
//
// One lane owns one token. It lays the token's values v[0], v[1], ... out in a column of shared memory that is its
// own bank: word r is the pair (v[r - 1], v[r]), so values appear twice. The channel pair (c, c + 1) is then one
// conflict-free load at r = number of kept channels up to c, masked by the two bits of the bitmap: no table, no
// divergence, and a time that does not depend on the data.
#pragma once

#include "attention/shared/mma.cuh"
#include "kv/kv_format.h"

namespace gossamer::cuda {

constexpr int kColumnStride = 128;  // bytes between the words of a column: 32 lanes of 4 bytes

// Bytes of shared memory for the columns of a warp.
constexpr int columns_bytes(int chunks) { return (chunks * kChunk + 1) * kColumnStride; }

GOSSAMER_INLINE __half2 as_half2(uint32_t x) { return reinterpret_cast<const __half2&>(x); }

// ---- 8 values of a token as 4 pairs of T ------------------------------------------------

GOSSAMER_INLINE uint32_t multiply2(uint32_t x, uint32_t scale, __half) {
  const __half2 y = __hmul2(reinterpret_cast<const __half2&>(x), reinterpret_cast<const __half2&>(scale));
  return reinterpret_cast<const uint32_t&>(y);
}
GOSSAMER_INLINE uint32_t multiply2(uint32_t x, uint32_t scale, __nv_bfloat16) {
  const __nv_bfloat162 y =
      __hmul2(reinterpret_cast<const __nv_bfloat162&>(x), reinterpret_cast<const __nv_bfloat162&>(scale));
  return reinterpret_cast<const uint32_t&>(y);
}

// Two of the four signed bytes of `word`, the lower or the upper ones, as a pair of T; exact.
GOSSAMER_INLINE uint32_t int8_pair(uint32_t word, bool upper, __half) {
  // 0x64xx is 1024 + xx in float16.
  const uint32_t biased = permute(word ^ 0x80808080u, 0x64646464u, upper ? 0x4342 : 0x4140);
  const __half2 y = __hsub2(reinterpret_cast<const __half2&>(biased), __half2half2(__ushort_as_half(0x6480)));
  return reinterpret_cast<const uint32_t&>(y);
}
GOSSAMER_INLINE uint32_t int8_pair(uint32_t word, bool upper, __nv_bfloat16) {
  // 0x43xx is 128 + xx in bfloat16 up to 0x7f; 0x4380 is 256, which a negative number is less.
  const uint32_t select = upper ? 0x4342 : 0x4140;
  const uint32_t low = permute(word & 0x7f7f7f7fu, 0x43434343u, select);
  const uint32_t base = permute(word & 0x80808080u, 0x43434343u, select);
  const __nv_bfloat162 y =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(low), reinterpret_cast<const __nv_bfloat162&>(base));
  return reinterpret_cast<const uint32_t&>(y);
}

GOSSAMER_INLINE uint32_t fp8_pair(uint32_t two) {  // float16 pair of two e4m3 bytes, which it holds exactly
#if __CUDA_ARCH__ >= 890
  uint32_t x;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(x) : "h"(static_cast<uint16_t>(two)));
  return x;
#else
  // The exponent of e4m3 is 8 too small for float16: moved into place and multiplied by 2^8; 0x7f is NaN.
  const uint32_t spread = permute(two, 0, 0x1404);
  uint32_t bits = (spread & 0x80008000u) | ((spread & 0x7f007f00u) >> 1);
  const __half2 y = __hmul2(reinterpret_cast<const __half2&>(bits), __float2half2_rn(256.0f));
  bits = reinterpret_cast<const uint32_t&>(y);
  if ((spread & 0x7f00u) == 0x7f00u) bits |= 0x7fffu;
  if ((spread & 0x7f000000u) == 0x7f000000u) bits |= 0x7fff0000u;
  return bits;
#endif
}
GOSSAMER_INLINE uint32_t from_half2(uint32_t x, __half) { return x; }
GOSSAMER_INLINE uint32_t from_half2(uint32_t x, __nv_bfloat16) {
  const float2 f = __half22float2(reinterpret_cast<const __half2&>(x));
  return pack2<__nv_bfloat16>(f.x, f.y);
}

// A pair of codes from 0 to 255, two of the four bytes of `word`, in float16.
GOSSAMER_INLINE uint32_t code_pair(uint32_t word, bool upper) {
  const __half2 y = __hsub2(as_half2(permute(word, 0x64646464u, upper ? 0x4342 : 0x4140)), __float2half2_rn(1024.0f));
  return reinterpret_cast<const uint32_t&>(y);
}

// 8 codes of 3 or 2 bits as 8 of 4 bits.
GOSSAMER_INLINE uint32_t nibbles_of_3(uint32_t x) {
  x = (x & 0x00000fffu) | (x & 0x00fff000u) << 4;
  x = (x & 0x003f003fu) | (x & 0x0fc00fc0u) << 2;
  return (x & 0x07070707u) | (x & 0x38383838u) << 1;
}
GOSSAMER_INLINE uint32_t nibbles_of_2(uint32_t x) {
  x = (x | x << 8) & 0x00ff00ffu;
  x = (x | x << 4) & 0x0f0f0f0fu;
  return (x | x << 2) & 0x33333333u;
}

// 8 values as they lie in a block.
template <Values V>
struct PackedChunk {
  static constexpr int kBytes = V == Values::f16  ? 16
                                : V == Values::i4 ? 4
                                : V == Values::i3 ? 3
                                : V == Values::i2 ? 2
                                                  : 8;
  uint32_t words[kBytes < 4 ? 1 : kBytes / 4];

  __device__ __forceinline__ void load(uint32_t address) {
    if constexpr (kBytes == 16) {
      const uint4 x = load_shared4(address);
      words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
    } else if constexpr (kBytes == 8) {
      const uint2 x = load_shared2(address);
      words[0] = x.x, words[1] = x.y;
    } else if constexpr (kBytes == 4) {
      words[0] = load_shared(address);
    } else if constexpr (kBytes == 3) {  // behind the last values are scales
      const uint32_t word = address & ~3u;
      words[0] = __funnelshift_r(load_shared(word), load_shared(word + 4), (address & 3) * 8);
    } else {
      words[0] = load_shared16(address);
    }
  }

  // 8 codes of 4 bits, with their signs or without.
  __device__ __forceinline__ uint32_t nibbles(bool signs) const {
    if constexpr (V == Values::i3) {
      const uint32_t x = nibbles_of_3(words[0]);
      return signs ? x | (x & 0x44444444u) << 1 : x;
    } else if constexpr (V == Values::i2) {
      const uint32_t x = nibbles_of_2(words[0]);
      return signs ? x | (x & 0x22222222u) * 6 : x;
    } else {
      return words[0];
    }
  }
  // The first or the last 4 of them, in bytes.
  __device__ __forceinline__ uint32_t four_bytes(bool last, bool signs) const {
    if constexpr (V == Values::i8) return words[last];
    const uint32_t x = nibbles(signs);
    return permute(x & 0x0f0f0f0fu, x >> 4 & 0x0f0f0f0fu, last ? 0x7362 : 0x5140);
  }

  // As 4 pairs of float16: codes without signs.
  __device__ __forceinline__ void unpack_codes(uint32_t (&v)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = code_pair(four_bytes(i / 2, false), i % 2);
  }
  // As 4 pairs of T; `scale` is a pair of the token's scale.
  template <class T>
  __device__ __forceinline__ void unpack(uint32_t scale, uint32_t (&v)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (V == Values::f16) {
        v[i] = words[i];
      } else if constexpr (V == Values::i8) {
        v[i] = multiply2(int8_pair(words[i / 2], i % 2, T{}), scale, T{});
      } else if constexpr (V == Values::fp8) {
        v[i] = multiply2(from_half2(fp8_pair(words[i / 2] >> (16 * (i % 2)) & 0xffff), T{}), scale, T{});
      } else {
        const uint32_t bytes = ((four_bytes(i / 2, true) ^ 0x08080808u) + 0x78787878u) ^ 0x80808080u;  // with signs
        v[i] = multiply2(int8_pair(bytes, i % 2, T{}), scale, T{});
      }
    }
  }
};

// `rows`: the address for store_words.
GOSSAMER_INLINE void store_column(uint32_t rows, uint32_t before, const uint32_t (&v)[4]) {
  static_assert(kColumnStride == 128);
  uint32_t between[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) between[i] = permute(i ? v[i - 1] : before, v[i], 0x5432);
  store_words(rows, between);
  store_words(rows + kColumnStride, v);
}

// What a column holds: values, or codes in float16, which get the scales of their channels later.
enum class Column { values, codes };

// Chunks of a column, all of them loaded before the first is stored.
template <class T, Values V, Column C, int Chunks>
GOSSAMER_INLINE uint32_t fill_chunks(uint32_t from, uint32_t rows, uint32_t scale, uint32_t before) {
  PackedChunk<V> packed[Chunks];
#pragma unroll
  for (int c = 0; c < Chunks; ++c) packed[c].load(from + c * kBlockTokens * PackedChunk<V>::kBytes);
#pragma unroll
  for (int c = 0; c < Chunks; ++c) {
    uint32_t v[4];
    if constexpr (C == Column::codes) {
      packed[c].unpack_codes(v);
    } else {
      packed[c].template unpack<T>(scale, v);
    }
    store_column(rows + c * kChunk * kColumnStride, before, v);
    before = v[3];
  }
  return before;
}

template <class T, Values V, Column C = Column::values>
GOSSAMER_INLINE void fill_column(const KvFormat& f, int chunks, uint32_t block, uint32_t column, int lane) {
  uint32_t scale = 0;
  if constexpr (V != Values::f16 && C == Column::values) {
    const float x = __half2float(__ushort_as_half(load_shared16(block + f.scales_at + lane * 2)));
    scale = pack2<T>(x, x);
  }
  const uint32_t from = block + f.values_at + lane * PackedChunk<V>::kBytes;
  const uint32_t rows = column - lane * 4 + words_offset(lane);
  uint32_t last = 0;
  // Unrolled for the usual numbers; not for codes that come here only beside values of another kind.
  constexpr bool kUsual = C == Column::values && (V == Values::f16 || V == Values::i8 || V == Values::fp8);
  if (kUsual && __builtin_expect(chunks == 5, 1)) {
    last = fill_chunks<T, V, C, 5>(from, rows, scale, 0);
  } else if (kUsual && chunks == 4) {
    last = fill_chunks<T, V, C, 4>(from, rows, scale, 0);
  } else if (kUsual && chunks == 8) {
    last = fill_chunks<T, V, C, 4>(from, rows, scale, 0);
    last = fill_chunks<T, V, C, 4>(from + 4 * kBlockTokens * PackedChunk<V>::kBytes, rows + 4 * kChunk * kColumnStride,
                                   scale, last);
  } else {
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      last = fill_chunks<T, V, C, 1>(from + c * kBlockTokens * PackedChunk<V>::kBytes,
                                     rows + c * kChunk * kColumnStride, scale, last);
    }
  }
  store_shared(column + chunks * kChunk * kColumnStride, last >> 16);
}

// Lays the values of the lane's token out in its column.
template <class T, Column C>
GOSSAMER_INLINE void fill_column(const KvFormat& f, int chunks, uint32_t block, uint32_t column, int lane) {
  if (f.values == Values::i4) return fill_column<T, Values::i4, C>(f, chunks, block, column, lane);
  if (f.values == Values::i8) return fill_column<T, Values::i8, C>(f, chunks, block, column, lane);
  if (f.values == Values::i3) return fill_column<T, Values::i3, C>(f, chunks, block, column, lane);
  if (f.values == Values::i2) return fill_column<T, Values::i2, C>(f, chunks, block, column, lane);
  if constexpr (C == Column::values) {
    if (f.values == Values::fp8) return fill_column<T, Values::fp8>(f, chunks, block, column, lane);
    fill_column<T, Values::f16>(f, chunks, block, column, lane);  // 16 bits of either kind, as they are
  }
}

// ---- a word of the bitmap and the column into 16 channel pairs ----------------------------

// Pairs of values as they are.
struct AsTheyAre {
  __device__ __forceinline__ void begin(int) {}
  __device__ __forceinline__ uint32_t operator()(int, uint32_t pair) const { return pair; }
};

// Pairs of codes times the scales of their channels, plus the minima: both lie in shared memory, [2][D] float16.
template <class T, int D>
struct ScaledByChannel {
  uint32_t address;  // of the first channel of the word
  uint32_t scale[4], minimum[4];

  // For the 8 channels of a byte of the bitmap.
  __device__ __forceinline__ void begin(int byte) {
    const uint4 x = load_shared4(address + byte * 16), y = load_shared4(address + byte * 16 + 2 * D);
    scale[0] = x.x, scale[1] = x.y, scale[2] = x.z, scale[3] = x.w;
    minimum[0] = y.x, minimum[1] = y.y, minimum[2] = y.z, minimum[3] = y.w;
  }
  __device__ __forceinline__ uint32_t operator()(int i, uint32_t pair) const {
    const __half2 x = __hfma2(as_half2(pair), as_half2(scale[i]), as_half2(minimum[i]));
    return from_half2(reinterpret_cast<const uint32_t&>(x), T{});
  }
};

// `at`: the address of the column's word at the rank of the first channel; moved past this word of the bitmap.
template <class Scaled>
GOSSAMER_INLINE void expand_word(uint32_t bits, uint32_t& at, Scaled scaled, uint32_t (&pairs)[16]) {
  uint32_t turned[8], one[8];  // bit k of every byte: at its top after turning by k + 1, at its bottom by k
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    turned[k] = k ? __funnelshift_r(bits, bits, k) : bits;
    one[k] = turned[k] & 0x01010101u;
  }
  // In each byte: how many of its bits are set up to bit 0, 2, 4, 6, and in all.
  uint32_t upto[4];
  upto[0] = one[0];
#pragma unroll
  for (int i = 1; i < 4; ++i) upto[i] = upto[i - 1] + one[2 * i - 1] + one[2 * i];
  const uint32_t all = upto[3] + one[7];
#pragma unroll
  for (int byte = 0; byte < 4; ++byte) {
    const uint32_t stride = static_cast<uint32_t>(kColumnStride) << (8 * byte);
    scaled.begin(byte);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = load_shared(__dp4a(upto[i], stride, at));
      const uint32_t low = 8 | ((byte + 3) & 3), high = 12 | (i < 3 ? (byte + 3) & 3 : byte);
      const uint32_t mask = permute(turned[2 * i + 1], turned[(2 * i + 2) & 7], low * 0x11 | high * 0x1100);
      pairs[4 * byte + i] = scaled(i, pair) & mask;
    }
    at = __dp4a(all, stride, at);
  }
}

}  // namespace gossamer::cuda
