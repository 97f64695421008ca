#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/vector.cuh"
#include "kv/channels.cuh"
#include "kv/codec.cuh"
#include "kv/kv_pack.h"
#include "kv/ranks.cuh"
#include "kv/tile.cuh"

namespace gossamer {
namespace {

// ---- one lane's row into its slot --------------------------------------------------

using Place = cuda::Place<uint8_t>;

// 8 values of b bits, as b bytes.
template <class Store>
GOSSAMER_INLINE void store_word(uint8_t* to, uint64_t word) {
  *reinterpret_cast<Store*>(to) = static_cast<Store>(word);
}

GOSSAMER_INLINE void store_codes(const KvFormat& f, const Place& place, int chunk, uint64_t word) {
  uint8_t* to = place.block + f.values_at + (chunk * kBlockTokens + place.token) * f.bits;
  if (f.bits == 8) return store_word<uint64_t>(to, word);
  if (f.bits == 4) return store_word<uint32_t>(to, word);
  if (f.bits == 2) return store_word<uint16_t>(to, word);
  for (int i = 0; i < 3; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
}

// Values without scales.
template <class V, class T, class Channels>
GOSSAMER_INLINE void store_floats(const KvFormat& f, const T* row, Channels channels, const Place& place) {
  V* to = reinterpret_cast<V*>(place.block + f.values_at) + place.token * kChunk;
  for (int chunk = 0; chunk < f.chunks; ++chunk, to += kBlockTokens * kChunk) {
    alignas(16) V values[kChunk];
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      const bool stays = chunk * kChunk + k < f.keep;
      if constexpr (std::is_same_v<V, T>) {
        values[k] = stays ? row[channels.next()] : V(0.0f);
      } else {
        values[k] = V(stays ? static_cast<float>(row[channels.next()]) : 0.0f);
      }
    }
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(values)) / 16; ++i) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(values)[i];
    }
  }
}

// Calls code(channel, x) for every entry that stays and stores what it returns.
template <class T, class Channels, class Code>
GOSSAMER_INLINE void store_coded(const KvFormat& f, const T* row, Channels channels, const Place& place,
                                 const Code& code) {
  const uint32_t mask = (1u << f.bits) - 1;
  for (int chunk = 0; chunk < f.chunks; ++chunk) {
    uint64_t word = 0;
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      if (chunk * kChunk + k >= f.keep) break;
      const int c = channels.next();
      word |= static_cast<uint64_t>(code(c, static_cast<float>(row[c])) & mask) << (k * f.bits);
    }
    store_codes(f, place, chunk, word);
  }
}

// One scale for the row.
template <class T, class Channels>
GOSSAMER_INLINE void store_scaled(const KvFormat& f, const T* row, Channels channels, const Place& place) {
  cuda::Range range(0.0f, 0.0f);  // rows are padded with zeros
  Channels again = channels;
  for (int i = 0; i < f.keep; ++i) range.add(static_cast<float>(row[again.next()]));
  const bool fp8 = f.values == Values::fp8;
  const cuda::Coding coding = fp8 ? cuda::fp8_coding(range) : cuda::signed_coding(range, f.bits);
  reinterpret_cast<uint16_t*>(place.block + f.scales_at)[place.token] = coding.scale_bits;
  const int most = 1 << (f.bits - 1);
  if (fp8) {
    const bool valid = coding.scale_bits != kHalfNan;
    store_coded(f, row, channels, place, [&](int, float x) { return valid ? cuda::fp8_bits(x, coding.factor) : 0; });
  } else {
    store_coded(f, row, channels, place,
                [&](int, float x) { return cuda::quantize(x, 0.0f, coding.factor, -most, most - 1); });
  }
}

// One scale and minimum for 32 channels of a dense row.
template <class T>
GOSSAMER_INLINE void store_groups(const KvFormat& f, const T* row, const Place& place) {
  for (int g = 0; g < f.head_dim / kGroup; ++g) {
    const T* x = row + g * kGroup;
    cuda::Range range(static_cast<float>(x[0]), static_cast<float>(x[0]));
    for (int k = 0; k < kGroup; ++k) range.add(static_cast<float>(x[k]));
    const cuda::Coding coding = cuda::asymmetric_coding(range, f.bits);
    const int at = g * kBlockTokens + place.token;
    reinterpret_cast<uint32_t*>(place.block + f.scales_at)[at] = coding.scale_bits | coding.minimum_bits << 16;
    for (int chunk = 0; chunk < kGroup / kChunk; ++chunk) {
      uint64_t word = 0;
      for (int k = 0; k < kChunk; ++k) {
        const float v = static_cast<float>(x[chunk * kChunk + k]);
        const int code = cuda::quantize(v, coding.minimum, coding.factor, 0, (1 << f.bits) - 1);
        word |= static_cast<uint64_t>(code) << (k * f.bits);
      }
      store_codes(f, place, g * (kGroup / kChunk) + chunk, word);
    }
  }
}

// What a warp shares to scale channels over its 32 tokens; a whole block.
struct ChannelScratch {
  uint32_t* masks;  // [32 tokens][words]
  float2* coding;   // [head_dim] minimum, factor
};

// One scale and minimum per channel over the tokens where it stays. Lanes own channels for a while.
template <class T>
GOSSAMER_INLINE void scale_channels(const KvFormat& f, const cuda::Tile<T>& tile, const ChannelScratch& scratch,
                                    int words, uint8_t* block) {
  __syncwarp();
  for (int c = threadIdx.x; c < f.head_dim; c += 32) {
    cuda::Range range(__int_as_float(kInfinity), -__int_as_float(kInfinity));
    for (int t = 0; t < kBlockTokens; ++t) {
      const bool stays = !f.sparse || (scratch.masks[t * words + c / 32] >> (c % 32) & 1);
      if (stays) range.add(static_cast<float>(tile.row(t)[c]));
    }
    if (!(range.low <= range.high) && range.finite) range = cuda::Range(0.0f, 0.0f);  // in no row
    const cuda::Coding coding = cuda::asymmetric_coding(range, f.bits);
    reinterpret_cast<uint32_t*>(block + f.scales_at)[c] = coding.scale_bits | coding.minimum_bits << 16;
    scratch.coding[c] = {coding.minimum, coding.factor};
  }
  __syncwarp();
}

template <class T, class Channels>
GOSSAMER_INLINE void store_by_channel(const KvFormat& f, const T* row, Channels channels, const Place& place,
                                      const ChannelScratch& scratch) {
  const int most = (1 << f.bits) - 1;
  store_coded(f, row, channels, place,
              [&](int c, float x) { return cuda::quantize(x, scratch.coding[c].x, scratch.coding[c].y, 0, most); });
}

template <int Words>
GOSSAMER_INLINE void store_bitmap(const KvFormat& f, const uint32_t (&selected)[Words], const Place& place) {
  uint8_t* to = place.block + place.token * (f.head_dim / 8);
  if (f.head_dim == 32 * Words && Words % 4 == 0) {
#pragma unroll
    for (int g = 0; g + 3 < Words; g += 4) {
      *reinterpret_cast<uint4*>(to + 4 * g) = {selected[g], selected[g + 1], selected[g + 2], selected[g + 3]};
    }
  } else if (f.head_dim == 32 * Words) {
#pragma unroll
    for (int g = 0; g < Words; ++g) *reinterpret_cast<uint32_t*>(to + 4 * g) = selected[g];
  } else {
#pragma unroll
    for (int g = 0; g < Words; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (4 * g + i < f.head_dim / 8) to[4 * g + i] = static_cast<uint8_t>(selected[g] >> (8 * i));
      }
    }
  }
}

template <class T, class Channels>
GOSSAMER_INLINE void store_row(const KvFormat& f, const T* row, const Channels& channels, const Place& place) {
  switch (f.values) {
    case Values::f32:
      return store_floats<float>(f, row, channels, place);
    case Values::f16:
      return store_floats<__half>(f, row, channels, place);
    case Values::bf16:
      return store_floats<__nv_bfloat16>(f, row, channels, place);
    default:
      return store_scaled(f, row, channels, place);
  }
}

// ---- kernels -----------------------------------------------------------------------

// The slot of a row; -1 where it is out of range, which skips the row.
GOSSAMER_INLINE int64_t slot_of(const KvPack& w, int64_t row) {
  if (row >= w.rows) return -1;
  int64_t slot = w.slots[row];
  if (w.table != nullptr) {
    if (slot < 0 || slot >= w.table_width * kBlockTokens) return -1;
    const int64_t block = w.table[row * w.table_stride + slot / kBlockTokens];
    slot = block < 0 ? -1 : block * kBlockTokens + slot % kBlockTokens;
  }
  return slot < 0 || slot >= w.num_blocks * kBlockTokens ? -1 : slot;
}

// Shared memory of a warp: its tile, then what scales per channel need: masks and codings.
template <class T>
__host__ __device__ constexpr int tile_bytes(const KvFormat& f) {
  return kBlockTokens * cuda::Tile<T>::row_bytes(f.head_dim);
}

template <class T>
__host__ __device__ constexpr int warp_bytes(const KvFormat& f) {
  const int by_channel = kBlockTokens * kMaxHeadDim / 8 + static_cast<int>(sizeof(float2)) * f.head_dim;
  return tile_bytes<T>(f) + (f.scales == Scales::channel ? by_channel : 0);
}

// Thread blocks that must fit a multiprocessor: as many as registers allow without spilling (5 instead of 6
// took 1.2x as long for ranks by magnitude). Before sm_90, clamping those takes registers of its own.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kOwnRankBlocks = 4;
#else
constexpr int kOwnRankBlocks = 6;
#endif
template <int Words, bool FloatRank>
constexpr int min_blocks = Words > 4   ? 2
                           : FloatRank ? 4
                                       : kOwnRankBlocks;

// The entries of the lane's row that stay; FloatRank: by weights, scores or float32 elements.
template <bool FloatRank, class T, int Words>
GOSSAMER_INLINE void select_entries(const KvPack& w, const T* row, int64_t row_index, int head,
                                    uint32_t (&selected)[Words]) {
  const KvFormat& f = w.format;
  if constexpr (FloatRank) {
    const int64_t safe_row = row_index < w.rows ? row_index : w.rows - 1;
    const float* scores = w.scores ? w.scores + safe_row * w.score_row_stride + head * w.score_head_stride : nullptr;
    const float* weights = w.weights ? w.weights + head * f.head_dim : nullptr;
    cuda::select_row(cuda::FloatRanks<T>{row, f.head_dim, weights, scores}, f.keep, selected);
  } else {
    cuda::select_row(cuda::OwnRanks<T>{row, f.head_dim}, f.keep, selected);
  }
}

// Whether the slots of the warp's rows are those of a block, in order.
GOSSAMER_INLINE bool whole_block(int64_t slot) {
  const int64_t start = __shfl_sync(~0u, slot, 0);
  return start >= 0 && start % kBlockTokens == 0 && __all_sync(~0u, slot == start + threadIdx.x);
}

// One warp per tile. Words = 0 for dense formats, else 32-bit words of a row's bitmap.
template <class T, int Words, bool FloatRank>
__global__ void __launch_bounds__(32 * cuda::kMaxWarps, min_blocks<Words, FloatRank>) kv_pack_kernel(const KvPack w) {
  extern __shared__ uint4 shared_memory[];
  const KvFormat& f = w.format;
  cuda::TileRows at;
  if (!at.find(w)) return;
  uint8_t* memory = reinterpret_cast<uint8_t*>(shared_memory) + threadIdx.y * warp_bytes<T>(f);
  const cuda::Tile<T> tile{memory, cuda::Tile<T>::row_bytes(f.head_dim)};
  const int64_t row_index = at.first + threadIdx.x;
  const int64_t slot = slot_of(w, row_index);
  const T* x = static_cast<const T*>(w.x) + at.first * w.x_row_stride + at.head * w.x_head_stride;
  tile.load(x, w.x_row_stride, at.rows, f.head_dim);

  const T* row = tile.row(threadIdx.x);
  const Place place(w, slot, at.head);
  uint32_t selected[Words > 0 ? Words : 1] = {};
  if constexpr (Words > 0) select_entries<FloatRank>(w, row, row_index, at.head, selected);
  const bool by_channel = f.scales == Scales::channel;
  ChannelScratch scratch{};
  if (by_channel) {
    if (!whole_block(slot)) return;
    scratch.coding = reinterpret_cast<float2*>(memory + tile_bytes<T>(f));
    scratch.masks = reinterpret_cast<uint32_t*>(scratch.coding + f.head_dim);
#pragma unroll
    for (int g = 0; g < Words; ++g) scratch.masks[threadIdx.x * Words + g] = selected[g];
    scale_channels(f, tile, scratch, Words, place.block);
  }
  if (slot < 0) return;
  if constexpr (Words > 0) {
    store_bitmap<Words>(f, selected, place);
    const cuda::Cursor<Words> channels(selected);
    if (by_channel) return store_by_channel(f, row, channels, place, scratch);
    store_row(f, row, channels, place);
  } else {
    if (by_channel) return store_by_channel(f, row, cuda::Counter{}, place, scratch);
    if (f.scales == Scales::group) return store_groups(f, row, place);
    store_row(f, row, cuda::Counter{}, place);
  }
}

template <class T, int Words, bool FloatRank>
void launch(const KvPack& w, cudaStream_t stream) {
  cuda::launch_tiles(w.table ? "kv_append" : "kv_pack", kv_pack_kernel<T, Words, FloatRank>, w, warp_bytes<T>(w.format),
                     stream);
}

void run(const Tensor& x, const KvPackCall& call) {
  const KvPack& w = call.work;
  if (w.rows == 0 || w.heads == 0 || w.num_blocks == 0) return;
  const cuda::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(x);
  cuda::for_dtype(call.dtype, [&](auto element) {
    using T = decltype(element);
    if (!w.format.sparse) return launch<T, 0, false>(w, stream);
    cuda::for_mask_words(w.format.head_dim, [&](auto words) {
      if constexpr (sizeof(T) == 2) {
        if (w.weights == nullptr && w.scores == nullptr) return launch<T, decltype(words)::value, false>(w, stream);
      }
      return launch<T, decltype(words)::value, true>(w, stream);
    });
  });
}

}  // namespace

void kv_pack_cuda(const Tensor& x, const Tensor& blocks, const Tensor& slots, std::optional<int64_t> keep,
                  const std::string& values, const std::string& scales, std::optional<Tensor> weights,
                  std::optional<Tensor> scores) {
  run(x, prepare_kv_pack("kv_pack", x, blocks, slots, std::nullopt, keep, values, scales, weights, scores));
}

void kv_append_cuda(const Tensor& x, const Tensor& blocks, const Tensor& block_table, const Tensor& positions,
                    std::optional<int64_t> keep, const std::string& values, const std::string& scales,
                    std::optional<Tensor> weights, std::optional<Tensor> scores) {
  run(x, prepare_kv_pack("kv_append", x, blocks, positions, block_table, keep, values, scales, weights, scores));
}

}  // namespace gossamer
