#include "linear_int8.kernel.h"

#include "block.kernel.h"
#include "dot_int8.kernel.h"
#include "fold.kernel.h"

namespace gossamer {
namespace {

template <class Dot, int R_>
struct Int8Block : Block<Dot, R_> {
  using Base = Block<Dot, R_>;
  using typename Base::X;
  static constexpr int R = R_, C = Base::C, step = Base::step;

  // The x of a block: what the sums of each row start with, then vectors of its first `step` codes, one for each row,
  // then of the next ones. After k there are zeros, so what weights have there does not count.
  GOSSAMER_INLINE int64_t packed_bytes(int64_t k) {
    return R * (sizeof(I32) + (k + step - 1) / step * step * sizeof(X));
  }
  GOSSAMER_INLINE const X* codes(const void* packed) {
    return reinterpret_cast<const X*>(static_cast<const char*>(packed) + R * sizeof(I32));
  }

  GOSSAMER_INLINE void pack(const int8_t* x, int64_t stride, int64_t k, void* packed) {
    for (int r = 0; r < R; ++r) {
      uint32_t total = 0;  // modulo 2^32, as the sums
      for (int64_t i = 0; Dot::weight_offset != 0 && i < k; ++i) total += static_cast<uint32_t>(x[r * stride + i]);
      const I32 start = {static_cast<int32_t>(0u - Dot::weight_offset * total)};
      std::memcpy(static_cast<I32*>(packed) + r, &start, sizeof start);
    }
    X* to = const_cast<X*>(codes(packed));
    for (int64_t i = 0; i < k; i += step) {
      for (int r = 0; r < R; ++r, to += step) {
        const int8_t* from = x + r * stride + i;
        int8_t some[step] = {};
        if (k - i < step) std::memcpy(some, from, k - i);
        Dot::pack(k - i < step ? some : from, to);
      }
    }
  }

  // `columns` of C results of each row, from the sum `First` on: a vector of sums at a time. row, j: of the first one.
  template <class T, int First>
  GOSSAMER_INLINE void store_from(const Base& b, const LinearInt8& work, int64_t row, int64_t j, int columns) {
    constexpr int count = R * C - First < kLanes ? R * C - First : kLanes;
    float scales[kLanes] = {};
    T shifts[kLanes] = {}, results[kLanes];
    GOSSAMER_UNROLL
    for (int i = 0; i < count; ++i) {
      const int r = (First + i) / C, c = (First + i) % C, lane = folded_lane(i);
      const int64_t column = j + (c < columns ? c : 0);
      scales[lane] = work.x_scale[row + r] * work.weight_scale[column];
      if (work.bias) shifts[lane] = static_cast<const T*>(work.bias)[column];
    }
    store(results, __builtin_convertvector(fold<1, First>(b.sums), F32) * load(scales) + load(shifts));
    T* out = static_cast<T*>(work.out) + row * work.n + j;
    GOSSAMER_UNROLL
    for (int i = 0; i < count; ++i) {
      const int r = (First + i) / C, c = (First + i) % C;
      if (c < columns) out[r * work.n + c] = results[folded_lane(i)];
    }
    if constexpr (First + kLanes < R * C) store_from<T, First + kLanes>(b, work, row, j, columns);
  }

  GOSSAMER_INLINE void store_all(const Base& b, const LinearInt8& work, int64_t row, int64_t j, int columns) {
    if (work.dtype == DType::f32) return store_from<float, 0>(b, work, row, j, columns);
    if (work.dtype == DType::f16) return store_from<f16_t, 0>(b, work, row, j, columns);
    store_from<bf16_t, 0>(b, work, row, j, columns);
  }
};

// Blocks first .. last-1 of x times columns begin .. end-1.
template <class B>
void add_blocks(const LinearInt8& work, const char* packed, int64_t first, int64_t last, int64_t begin, int64_t end) {
  const int64_t stride = work.weight_stride, bytes = B::packed_bytes(work.k);
  for (int64_t j = begin; j < end; j += B::C) {
    const int columns = static_cast<int>(end - j < B::C ? end - j : B::C);
    const int64_t ahead = j + B::C < end ? B::C * stride : 0;  // a whole block, as in linear.kernel.cpp
    for (int64_t i = first; i < last; ++i) {
      B b;
      GOSSAMER_UNROLL
      for (int s = 0; s < B::R * B::C; ++s) b.sums[s] = load_raw<I32>(packed + i * bytes + s / B::C * sizeof(I32));
      GOSSAMER_UNROLL
      for (int c = 0; c < B::C; ++c) b.weight[c] = work.weight + (j + (c < columns ? c : 0)) * stride;
      B::add_all(b, B::codes(packed + i * bytes), work.k, ahead);
      B::store_all(b, work, first_row<B>(work.rows, i), j, columns);
    }
  }
}

// As many blocks of x at a time as stay in L2 while all weights pass by.
template <class B>
void add_rows(const LinearInt8& work, const char* packed, int64_t begin, int64_t end) {
  constexpr int64_t panel_bytes = 1 << 18;
  const int64_t blocks = count_blocks(work.rows, B::R), step = panel_bytes / B::packed_bytes(work.k) + 1;
  for (int64_t i = 0; i < blocks; i += step) {
    add_blocks<B>(work, packed, i, i + step < blocks ? i + step : blocks, begin, end);
  }
}

// ---- f(Block) for the block that suits the call ------------------------------------------------------------------
template <class F>
GOSSAMER_INLINE void with_block(const LinearInt8& work, F f) {
#if GOSSAMER_LANES == 16
  if (has_byte_dot()) return with_rows<Int8Block, ByteDot>(work.rows, f);
#endif
  with_rows<Int8Block, WordDot>(work.rows, f);
}

}  // namespace

namespace GOSSAMER_ISA {

int64_t linear_int8_packed_bytes(const LinearInt8& work) {
  int64_t bytes = 0;
  with_block(work, [&](auto block) {
    using B = decltype(block);
    bytes = count_blocks(work.rows, B::R) * B::packed_bytes(work.k);
  });
  return bytes;
}

void linear_int8_pack(const LinearInt8& work, void* packed) {
  with_block(work, [&](auto block) {
    using B = decltype(block);
    for (int64_t i = 0; i < count_blocks(work.rows, B::R); ++i) {
      B::pack(work.x + first_row<B>(work.rows, i) * work.x_stride, work.x_stride, work.k,
              static_cast<char*>(packed) + i * B::packed_bytes(work.k));
    }
  });
}

void linear_int8(const LinearInt8& work, const void* packed, int64_t begin, int64_t end) {
  with_block(work, [&](auto block) { add_rows<decltype(block)>(work, static_cast<const char*>(packed), begin, end); });
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
