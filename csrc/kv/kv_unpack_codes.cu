#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/vector.cuh"
#include "kv/cells.cuh"
#include "kv/codec.cuh"
#include "kv/kv_unpack_codes.h"
#include "kv/tile.cuh"

namespace gossamer {
namespace {

using Place = cuda::Place<const uint8_t>;

// Codes to numbers. The bits of 2^23 with a code for their lower half are 2^23 + code, without a conversion.
GOSSAMER_INLINE void to_floats(const KvFormat& f, const cuda::Cells& codes, float (&x)[kChunk]) {
  constexpr uint32_t base = 0x4b000000u;  // 2^23
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = codes.words[i];
    if (f.values == Values::fp8) {
      x[2 * i] = cuda::fp8_value(word & 0xff);
      x[2 * i + 1] = cuda::fp8_value(word >> 16);
    } else {
      x[2 * i] = __uint_as_float(__byte_perm(word, base, 0x7610)) - 8388608.0f;
      x[2 * i + 1] = __uint_as_float(__byte_perm(word, base, 0x7632)) - 8388608.0f;
    }
  }
}

// The numbers of group g with their scales. Products are exact.
template <Scales scales>
GOSSAMER_INLINE void scale(const KvFormat& f, const Place& place, float row_scale, int g, float (&x)[kChunk]) {
  const __half* halves = reinterpret_cast<const __half*>(place.block + f.scales_at);
  if constexpr (scales == Scales::channel) {
    float factor[kChunk], minimum[kChunk];
    cuda::load_floats(halves + g * kChunk, factor);
    cuda::load_floats(halves + f.head_dim + g * kChunk, minimum);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) x[k] = x[k] * factor[k] + minimum[k];
  } else if constexpr (scales == Scales::group) {
    const int at = 2 * (g / (kGroup / kChunk)) * kBlockTokens + place.token;
    const float factor = __half2float(halves[at]), minimum = __half2float(halves[at + kBlockTokens]);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) x[k] = x[k] * factor + minimum;
  } else {
    const float levels = static_cast<float>(1 << f.group_bits[g]);
    const float middle = f.values == Values::profile ? (levels - 1) / 2 : f.values == Values::fp8 ? 0.0f : levels / 2;
#pragma unroll
    for (int k = 0; k < kChunk; ++k) x[k] = (x[k] - middle) * row_scale;
  }
}

template <class T>
GOSSAMER_INLINE void store_floats(const float (&x)[kChunk], T* to) {
  constexpr int length = cuda::vector_length<T> < kChunk ? cuda::vector_length<T> : kChunk;
#pragma unroll
  for (int i = 0; i < kChunk; i += length) {
    float part[length];
#pragma unroll
    for (int k = 0; k < length; ++k) part[k] = x[i + k];
    cuda::store(to + i, cuda::pack<T, length>(part));
  }
}

// All channels of the lane's row to shared memory. Third bits are at the end of the line.
template <Scales scales, class T>
GOSSAMER_INLINE void decode_row(const KvUnpack& w, const Place& place, T* row) {
  const KvFormat& f = w.format;
  float row_scale = 1.0f;
  if constexpr (scales == Scales::row) {
    row_scale = __half2float(reinterpret_cast<const __half*>(place.block + f.scales_at)[place.token]);
  }
  float x[kChunk];
  for (int g = 0; f.values == Values::profile && g < f.head_dim / kChunk; ++g) {
    if (f.group_bits[g] != 0) continue;
#pragma unroll
    for (int k = 0; k < kChunk; ++k) x[k] = 0.0f * row_scale;  // NaN in a row that could not be scaled
    store_floats(x, row + g * kChunk);
  }
  cuda::Cells cells{}, thirds{};
  int chunk = -1, third_chunk = -1;
  for (int i = 0; i < w.fields.count && w.fields.fields[i].shift == 0; ++i) {
    const KvField field = w.fields.fields[i];
    if (field.at / 16 != chunk) {
      chunk = field.at / 16;
      cells = cuda::load_cells(f, place.block, place.token, chunk);
    }
    cuda::Cells codes = cells.field(field.at % 16, field.width);
    if (f.group_bits[field.group] == 3) {
      const int at = f.group_third[field.group];
      if (at / 16 != third_chunk) {
        third_chunk = at / 16;
        thirds = cuda::load_cells(f, place.block, place.token, third_chunk);
      }
      codes.put(thirds.field(at % 16, 1), 2);
    }
    to_floats(f, codes, x);
    scale<scales>(f, place, row_scale, field.group, x);
    store_floats(x, row + field.group * kChunk);
  }
}

// One warp per tile.
template <class T, Scales scales>
__global__ void __launch_bounds__(32 * cuda::kMaxWarps) kv_unpack_codes_kernel(const __grid_constant__ KvUnpack w) {
  extern __shared__ uint4 shared_memory[];
  const KvFormat& f = w.format;
  cuda::TileRows at;
  if (!at.find(w)) return;
  const int stride = cuda::Tile<T>::row_bytes(f.head_dim);
  const cuda::Tile<T> tile{reinterpret_cast<uint8_t*>(shared_memory) + threadIdx.y * kBlockTokens * stride, stride};
  T* row = tile.row(threadIdx.x);
  const int64_t slot = static_cast<int>(threadIdx.x) < at.rows ? w.slots[at.first + threadIdx.x] : -1;
  if (slot >= 0 && slot < w.num_blocks * kBlockTokens) {
    decode_row<scales>(w, Place(w, slot, at.head), row);
  } else {
    for (int c = 0; c < f.head_dim; c += cuda::Tile<T>::kPiece) *reinterpret_cast<uint4*>(row + c) = uint4{};
  }
  const int64_t row_stride = static_cast<int64_t>(w.heads) * f.head_dim;
  T* out = static_cast<T*>(w.out) + at.first * row_stride + at.head * f.head_dim;
  tile.store(out, row_stride, at.rows, f.head_dim);
}

template <class T, Scales scales>
void launch(const KvUnpack& w, cudaStream_t stream) {
  const int warp_bytes = kBlockTokens * cuda::Tile<T>::row_bytes(w.format.head_dim);
  cuda::launch_tiles("kv_unpack", kv_unpack_codes_kernel<T, scales>, w, warp_bytes, stream);
}

}  // namespace

void unpack_codes(const KvUnpack& w, DType dtype, cudaStream_t stream) {
  cuda::for_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    switch (w.format.scales) {
      case Scales::none:
        return launch<T, Scales::none>(w, stream);
      case Scales::row:
        return launch<T, Scales::row>(w, stream);
      case Scales::channel:
        return launch<T, Scales::channel>(w, stream);
      case Scales::group:
        return launch<T, Scales::group>(w, stream);
    }
  });
}

}  // namespace gossamer
