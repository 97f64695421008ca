#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/vector.cuh"
#include "kv/channels.cuh"
#include "kv/codec.cuh"
#include "kv/kv_unpack.h"
#include "kv/kv_unpack_codes.h"
#include "kv/tile.cuh"

namespace gossamer {
namespace {

// ---- stored entries of a token ---------------------------------------------------------

using Place = cuda::Place<const uint8_t>;

GOSSAMER_INLINE uint64_t load_codes(const uint8_t* chunk, int bits) {
  if (bits == 8) return *reinterpret_cast<const uint64_t*>(chunk);
  if (bits == 4) return *reinterpret_cast<const uint32_t*>(chunk);
  if (bits == 2) return *reinterpret_cast<const uint16_t*>(chunk);
  return chunk[0] | chunk[1] << 8 | chunk[2] << 16;
}

// Eight entries before their scales.
GOSSAMER_INLINE void load_chunk(const KvFormat& f, const Place& place, int chunk, float (&x)[kChunk]) {
  const uint8_t* from = place.block + f.values_at + (chunk * kBlockTokens + place.token) * f.bits;
  if (f.values == Values::f32) return cuda::load_floats(reinterpret_cast<const float*>(from), x);
  if (f.values == Values::f16) return cuda::load_floats(reinterpret_cast<const __half*>(from), x);
  if (f.values == Values::bf16) return cuda::load_floats(reinterpret_cast<const __nv_bfloat16*>(from), x);
  const uint64_t word = load_codes(from, f.bits);
  const int sign = f.scales == Scales::row ? 1 << (f.bits - 1) : 0;
#pragma unroll
  for (int k = 0; k < kChunk; ++k) {
    const int code = static_cast<int>(word >> (k * f.bits)) & ((1 << f.bits) - 1);
    x[k] = f.values == Values::fp8 ? cuda::fp8_value(code) : static_cast<float>((code ^ sign) - sign);
  }
}

GOSSAMER_INLINE float scaled(const KvFormat& f, const Place& place, float row_scale, int c, float x) {
  if (f.scales == Scales::none) return x;
  if (f.scales == Scales::row) return x * row_scale;
  const __half* scales = reinterpret_cast<const __half*>(place.block + f.scales_at);
  return x * __half2float(scales[c]) + __half2float(scales[f.head_dim + c]);  // the product is exact
}

template <int Words>
GOSSAMER_INLINE void load_bitmap(const KvFormat& f, const Place& place, uint32_t (&mask)[Words]) {
  const int bytes = f.head_dim / 8;
  const uint8_t* from = place.block + place.token * bytes;
#pragma unroll
  for (int g = 0; g < Words; ++g) {
    mask[g] = 0;
    if (f.head_dim % 32 == 0) {
      if (4 * g < bytes) mask[g] = *reinterpret_cast<const uint32_t*>(from + 4 * g);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * g + i < bytes) mask[g] |= from[4 * g + i] << (8 * i);
      }
    }
  }
}

// ---- kernel -----------------------------------------------------------------------------

// The stored entries of the lane's row to their channels in `row`, which is all zero. `count` is how many
// bits its bitmap has: `keep`, unless nobody wrote the slot, whose last stored entry then fills the rest.
template <class T, class Channels>
GOSSAMER_INLINE void expand_row(const KvFormat& f, const Place& place, Channels channels, int count, T* row) {
  float row_scale = 0.0f;
  if (f.scales == Scales::row) {
    row_scale = __half2float(reinterpret_cast<const __half*>(place.block + f.scales_at)[place.token]);
  }
  float x[kChunk];
  for (int chunk = 0; chunk < f.chunks; ++chunk) {
    load_chunk(f, place, chunk, x);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      if (chunk * kChunk + k >= count) break;
      const int c = channels.next();
      row[c] = T(scaled(f, place, row_scale, c, x[k]));
    }
  }
  for (int i = f.chunks * kChunk; i < count; ++i) {
    const int c = channels.next();
    row[c] = T(scaled(f, place, row_scale, c, x[kChunk - 1]));
  }
}

// One warp per tile; Words = 0 for dense rows of floats, else 32-bit words of a row's bitmap.
template <class T, int Words>
__global__ void __launch_bounds__(32 * cuda::kMaxWarps) kv_unpack_kernel(const KvUnpack w) {
  extern __shared__ uint4 shared_memory[];
  const KvFormat& f = w.format;
  cuda::TileRows at;
  if (!at.find(w)) return;
  const int stride = cuda::Tile<T>::row_bytes(f.head_dim);
  const cuda::Tile<T> tile{reinterpret_cast<uint8_t*>(shared_memory) + threadIdx.y * kBlockTokens * stride, stride};

  T* row = tile.row(threadIdx.x);
  for (int c = 0; c < f.head_dim; c += cuda::Tile<T>::kPiece) *reinterpret_cast<uint4*>(row + c) = uint4{};
  const int64_t slot = static_cast<int>(threadIdx.x) < at.rows ? w.slots[at.first + threadIdx.x] : -1;
  if (slot >= 0 && slot < w.num_blocks * kBlockTokens) {
    const Place place(w, slot, at.head);
    if constexpr (Words > 0) {
      uint32_t mask[Words];
      load_bitmap<Words>(f, place, mask);
      int count = 0;
#pragma unroll
      for (int g = 0; g < Words; ++g) count += __popc(mask[g]);
      expand_row(f, place, cuda::Cursor<Words>(mask), count, row);
    } else {
      expand_row(f, place, cuda::Counter{}, f.head_dim, row);
    }
  }
  const int64_t row_stride = static_cast<int64_t>(w.heads) * f.head_dim;
  T* out = static_cast<T*>(w.out) + at.first * row_stride + at.head * f.head_dim;
  tile.store(out, row_stride, at.rows, f.head_dim);
}

template <class T, int Words>
void launch(const KvUnpack& w, cudaStream_t stream) {
  const int warp_bytes = kBlockTokens * cuda::Tile<T>::row_bytes(w.format.head_dim);
  cuda::launch_tiles("kv_unpack", kv_unpack_kernel<T, Words>, w, warp_bytes, stream);
}

}  // namespace

Tensor kv_unpack_cuda(const KvUnpackArguments& arguments) {
  const KvUnpackCall call = prepare_kv_unpack(arguments);
  const Tensor& blocks = arguments.blocks;
  const KvUnpack& w = call.work;
  if (w.rows == 0 || w.heads == 0) return call.out;
  const cuda::DeviceGuard guard(blocks.get_device_index());
  const cudaStream_t stream = cuda::current_stream(blocks);
  if (w.format.has_codes()) {
    unpack_codes(w, call.dtype, stream);
    return call.out;
  }
  cuda::for_dtype(call.dtype, [&](auto element) {
    using T = decltype(element);
    if (!w.format.sparse) return launch<T, 0>(w, stream);
    cuda::for_mask_words(w.format.head_dim, [&](auto words) { launch<T, decltype(words)::value>(w, stream); });
  });
  return call.out;
}

}  // namespace gossamer
