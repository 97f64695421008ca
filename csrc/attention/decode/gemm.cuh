// Q K^T and P V of a warp and a block of 32 tokens, with channel pairs as one lane per token holds them.
//
// A register over the 32 lanes is, to the tensor cores, a column-major [8, 8] operand: 2 channels of 4 tokens down, 8
// tokens across. Q becomes block-diagonal over the 4 tokens ("classes", token % 4), of which mma.sp skips half of the
// zeros. V is first permuted by mma.sp into [class, channel] x [token] order, 8 channels and two classes at a time.
#pragma once

#include "attention/decode/nibbles.cuh"
#include "attention/decode/softmax.cuh"

namespace gossamer::cuda {

// The operand Q for 8 channels and a set of 4 rows: 4 x 16 bytes for the lanes that have some, then 16 of zeros.
constexpr int kQueryStep = 80;
constexpr int query_bytes(int head_dim, int sets) { return head_dim / 8 * sets * kQueryStep; }

// Where lane (g, t) finds its part of the first step: of rows g / 4 and g / 4 + 2, if class g % 4 is in its columns.
GOSSAMER_INLINE uint32_t query_offset(int lane) {
  const int g = lane / 4, t = lane % 4;
  return ((g >> 1 & 1) == (t & 1) ? (g >> 2) * 2 + (t >> 1) : 4) * 16;
}

// Word i of that for rows [0, rows) of q; `row(r)` points to the elements of row r. Folded: pairs of channels are.
template <class T, int D, int Sets, bool Folded, class Row>
GOSSAMER_INLINE uint32_t query_word(uint32_t i, int rows, const Row& row) {
  const int word = i % (kQueryStep / 4), set = i / (kQueryStep / 4) % Sets, step = i / (kQueryStep / 4) / Sets;
  const int quarter = word / 4, part = word % 4;  // (row parity, channel pair of two), register of the operand
  const int r = 4 * set + quarter / 2 + 2 * (part & 1), channel = 8 * step + 4 * (part >> 1) + 2 * (quarter & 1);
  if (word >= 16 || r >= rows || i >= query_bytes(D, Sets) / 4) return 0;
  if constexpr (Folded) {
    const uint16_t* eight = reinterpret_cast<const uint16_t*>(row(r)) + 8 * step;
    return eight[channel % 8 / 2] | static_cast<uint32_t>(eight[channel % 8 / 2 + 4]) << 16;
  }
  return *reinterpret_cast<const uint32_t*>(row(r) + channel);
}
// All of them to shared memory, by all threads of the CTA; `first`: the thread's first one.
template <class T, int D, int Sets, bool Folded, class Row>
GOSSAMER_INLINE void store_queries(uint32_t queries, uint32_t first, int rows, const Row& row) {
  constexpr int kWords = query_bytes(D, Sets) / 4;
  if (threadIdx.x < kWords) store_shared(queries + threadIdx.x * 4, first);
#pragma unroll 1
  for (int i = threadIdx.x + blockDim.x; i < kWords; i += blockDim.x) {
    store_shared(queries + i * 4, query_word<T, D, Sets, Folded>(i, rows, row));
  }
}

// The first `Held` steps of the operand Q stay in registers: shared memory is what this kernel is bound by.
template <int D, int Sets, int Held>
struct Queries {
  uint4 held[Held > 0 ? Held : 1][Sets];
  uint32_t address, columns;

  __device__ __forceinline__ void load(uint32_t queries, int lane) {
    address = pinned(queries + query_offset(lane));
    columns = pinned(lane / 4 & 1 ? kSecondPair : kFirstPair);
#pragma unroll
    for (int step = 0; step < Held; ++step) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) held[step][set] = load_shared4(address + (step * Sets + set) * kQueryStep);
    }
  }
  __device__ __forceinline__ uint4 at(int step, int set) const {
    return step < Held ? held[step < Held ? step : 0][set] : load_shared4(address + (step * Sets + set) * kQueryStep);
  }
};

// What scores of rows begin with: [set][row 0, row 1].
template <int Sets>
struct Offsets {
  float rows[Sets][2] = {};
};

template <class T, int D, int Sets, int Held, class Pairs>
GOSSAMER_INLINE void gemm_qk(const Queries<D, Sets, Held>& q, Pairs& source, Scores<Sets>& x,
                             const Offsets<Sets>& offsets = {}) {
  float c[Sets][4];
#pragma unroll
  for (int i = 0; i < 4 * Sets; ++i) c[i / 4][i % 4] = offsets.rows[i / 4][i % 4 / 2];
#pragma unroll
  for (int w = 0; w < D / 32; ++w) {
    uint32_t pairs[16];
    source.load(w, pairs);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int set = 0; set < Sets; ++set) {
        Mma<T>::sparse(c[set], q.at(4 * w + i, set), pairs + 4 * i, q.columns);
      }
    }
  }
#pragma unroll
  for (int set = 0; set < Sets; ++set) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x.s[set][i] = c[set][i];
  }
}

// The permutation that takes (channel pair, class, channel) to (class, channel) among 8 channels and two classes.
GOSSAMER_INLINE uint4 transposer(int lane) {
  const int g = lane / 4, t = lane % 4, column = 2 * (g >> 1);
  const uint32_t one = g & 1 ? 0x3c000000u : 0x00003c00u;  // 1.0 in float16
  return {pinned(t == column ? one : 0), pinned(t == column + 1 ? one : 0), pinned(4 + t == column ? one : 0),
          pinned(4 + t == column + 1 ? one : 0)};
}

// Adds weights times values.
template <class T, int D, int Sets, class Pairs>
GOSSAMER_INLINE void gemm_pv(Pairs& source, const uint4& transpose, const uint4& weights, State<D, Sets>& state) {
#pragma unroll
  for (int w = 0; w < D / 32; ++w) {
    uint32_t pairs[16];
    source.load(w, pairs);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float (&out)[4] = state.out[2 * w + half];
      const uint32_t* low = pairs + 8 * half;
      uint32_t x[2], y[2];
      permute_rows(x, transpose, low, kFirstPair);
      permute_rows(y, transpose, low + 4, kFirstPair);
      Mma<T>::dense(out, x[0], y[0], x[1], y[1], weights.x, weights.z);
      permute_rows(x, transpose, low, kSecondPair);
      permute_rows(y, transpose, low + 4, kSecondPair);
      Mma<T>::dense(out, x[0], y[0], x[1], y[1], weights.y, weights.w);
    }
  }
}

}  // namespace gossamer::cuda
