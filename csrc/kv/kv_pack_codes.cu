#include "gossamer/cuda/dtype.cuh"
#include "kv/encode.cuh"
#include "kv/kv_pack_codes.h"
#include "kv/slots.cuh"
#include "kv/tile.cuh"

namespace gossamer {
namespace {

enum class Kind { row, fp8, channel, group, profile };

template <class T>
__host__ __device__ constexpr int tile_bytes(const KvFormat& f) {
  return kBlockTokens * cuda::Tile<T>::row_bytes(f.head_dim);
}

// Shared memory of a warp: its tile, then a minimum and factor for each channel, or for 32 channels of each token.
template <class T>
__host__ __device__ constexpr int warp_bytes(const KvFormat& f) {
  const bool asymmetric = f.scales == Scales::channel || f.scales == Scales::group;
  return tile_bytes<T>(f) + (asymmetric ? static_cast<int>(sizeof(float2)) * f.head_dim : 0);
}

// One scale and minimum per channel over the block's 32 tokens. Lanes own pairs of channels for a while.
template <class T>
GOSSAMER_INLINE void scale_channels(const KvFormat& f, int bits, const cuda::Tile<T>& tile, float2* codings,
                                    uint8_t* block) {
  ushort2* scales = reinterpret_cast<ushort2*>(block + f.scales_at);
  for (int p = threadIdx.x; p < f.head_dim / 2; p += 32) {
    const auto pair = [&](int t) { return reinterpret_cast<const cuda::Pair<T>*>(tile.row(t))[p]; };
    cuda::Extremes<T> extremes(pair(0));
#pragma unroll 8
    for (int t = 1; t < kBlockTokens; ++t) extremes.add(pair(t));
    const cuda::Coding a = cuda::asymmetric_coding(extremes.of_first(), bits);
    const cuda::Coding b = cuda::asymmetric_coding(extremes.of_second(), bits);
    scales[p] = {a.scale_bits, b.scale_bits};
    scales[f.head_dim / 2 + p] = {a.minimum_bits, b.minimum_bits};
    codings[2 * p] = {a.minimum, a.factor};
    codings[2 * p + 1] = {b.minimum, b.factor};
  }
  __syncwarp();
}

// One scale and minimum for 32 channels of the lane's row.
template <class T>
GOSSAMER_INLINE void scale_groups(const KvFormat& f, int bits, const T* row, float2* codings, uint8_t* block,
                                  int token) {
  uint16_t* scales = reinterpret_cast<uint16_t*>(block + f.scales_at) + token;
  for (int g = 0; g < f.head_dim / kGroup; ++g) {
    const cuda::Coding coding = cuda::asymmetric_coding(cuda::range_of(row + g * kGroup, kGroup), bits);
    scales[2 * g * kBlockTokens] = coding.scale_bits;
    scales[(2 * g + 1) * kBlockTokens] = coding.minimum_bits;
    codings[g * kBlockTokens] = {coding.minimum, coding.factor};
  }
}

// The codes of the lane's row, made by encode(group). Bits: of all groups, or 0 for the format's list of fields.
template <int Bits, class Encode>
GOSSAMER_INLINE void store_codes(const KvPack& w, uint8_t* block, int token, bool whole, const Encode& encode) {
  const KvFormat& f = w.format;
  if constexpr (Bits > 0) {
    constexpr int fields = 16 / Bits;
    const int groups = f.head_dim / kChunk;
    for (int chunk = 0; chunk * fields < groups; ++chunk) {
      cuda::Cells cells{};
#pragma unroll
      for (int i = 0; i < fields; ++i) {
        const int g = chunk * fields + i;
        if (g < groups) cells.put(encode(g), i * Bits);
      }
      cuda::store_cells(f, block, token, chunk, cells, whole);
    }
  } else {
    cuda::Cells cells{};
    for (int i = 0; i < w.fields.count; ++i) {
      const KvField field = w.fields.fields[i];
      cells.put(encode(field.group).field(field.shift, field.width), field.at % 16);
      const int end = field.at + field.width;
      if (i + 1 < w.fields.count && end % 16 != 0) continue;
      cuda::store_cells(f, block, token, field.at / 16, cells, whole);
      cells = {};
    }
  }
}

// One warp per tile.
template <class T, Kind kind, int Bits>
__global__ void __launch_bounds__(32 * cuda::kMaxWarps) kv_pack_codes_kernel(const __grid_constant__ KvPack w) {
  extern __shared__ uint4 shared_memory[];
  const KvFormat& f = w.format;
  const int bits = Bits > 0 ? Bits : f.bits;
  cuda::TileRows at;
  if (!at.find(w)) return;
  uint8_t* memory = reinterpret_cast<uint8_t*>(shared_memory) + threadIdx.y * warp_bytes<T>(f);
  const cuda::Tile<T> tile{memory, cuda::Tile<T>::row_bytes(f.head_dim)};
  const int64_t slot = cuda::slot_of(w, at.first + threadIdx.x);
  const T* x = static_cast<const T*>(w.x) + at.first * w.x_row_stride + at.head * w.x_head_stride;
  tile.load(x, w.x_row_stride, at.rows, f.head_dim);

  T* row = tile.row(threadIdx.x);
  const cuda::Place<uint8_t> place(w, slot, at.head);
  const bool whole = cuda::whole_block(slot);
  float2* codings = reinterpret_cast<float2*>(memory + tile_bytes<T>(f));
  if constexpr (kind == Kind::channel) {
    if (!whole) return;
    scale_channels(f, bits, tile, codings, place.block);
    store_codes<Bits>(w, place.block, place.token, whole, cuda::AsymmetricEncoder<T>{row, codings, 0});
    return;
  }
  if (slot < 0) return;
  if constexpr (kind == Kind::group) {
    codings += threadIdx.x;
    scale_groups(f, bits, row, codings, place.block, place.token);
    store_codes<Bits>(w, place.block, place.token, whole, cuda::AsymmetricEncoder<T>{row, codings, kBlockTokens});
  } else if constexpr (kind != Kind::channel) {
    const auto encode = [&] {
      if constexpr (kind == Kind::row) {
        return cuda::SignedEncoder<T>(f, row, bits);
      } else if constexpr (kind == Kind::fp8) {
        return cuda::Fp8Encoder<T>(f, row, bits);
      } else {
        return cuda::ProfileEncoder<T>(f, row, w.weights ? w.weights + at.head * f.head_dim : nullptr);
      }
    }();
    if (f.scales == Scales::row) {
      reinterpret_cast<uint16_t*>(place.block + f.scales_at)[place.token] = encode.scale_bits;
    }
    store_codes<Bits>(w, place.block, place.token, whole, encode);
  }
}

template <class T, Kind kind, int Bits>
void launch(const KvPack& w, cudaStream_t stream) {
  cuda::launch_tiles(w.table ? "kv_append" : "kv_pack", kv_pack_codes_kernel<T, kind, Bits>, w, warp_bytes<T>(w.format),
                     stream);
}

template <class T, Kind kind>
void launch_bits(const KvPack& w, cudaStream_t stream) {
  if (w.format.bits == 8) return launch<T, kind, 8>(w, stream);
  if (w.format.bits == 4) return launch<T, kind, 4>(w, stream);
  return launch<T, kind, 0>(w, stream);
}

}  // namespace

void pack_codes(const KvPack& w, DType dtype, cudaStream_t stream) {
  const KvFormat& f = w.format;
  cuda::for_dtype(dtype, [&](auto element) {
    using T = decltype(element);
    if (f.values == Values::profile) return launch<T, Kind::profile, 0>(w, stream);
    if (f.values == Values::fp8) return launch<T, Kind::fp8, 8>(w, stream);
    if (f.scales == Scales::channel) return launch_bits<T, Kind::channel>(w, stream);
    if (f.scales == Scales::group) return launch_bits<T, Kind::group>(w, stream);
    return launch_bits<T, Kind::row>(w, stream);
  });
}

}  // namespace gossamer
