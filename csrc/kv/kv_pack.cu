#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/vector.cuh"
#include "kv/kv_pack.h"
#include "kv/kv_pack_codes.h"
#include "kv/ranks.cuh"
#include "kv/slots.cuh"
#include "kv/store.cuh"
#include "kv/tile.cuh"

namespace gossamer {
namespace {

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

// One warp per tile. Words = 0 for dense rows of floats, else 32-bit words of a row's bitmap.
template <class T, int Words, bool FloatRank>
__global__ void __launch_bounds__(32 * cuda::kMaxWarps, min_blocks<Words, FloatRank>) kv_pack_kernel(const KvPack w) {
  extern __shared__ uint4 shared_memory[];
  const KvFormat& f = w.format;
  cuda::TileRows at;
  if (!at.find(w)) return;
  uint8_t* memory = reinterpret_cast<uint8_t*>(shared_memory) + threadIdx.y * warp_bytes<T>(f);
  const cuda::Tile<T> tile{memory, cuda::Tile<T>::row_bytes(f.head_dim)};
  const int64_t row_index = at.first + threadIdx.x;
  const int64_t slot = cuda::slot_of(w, row_index);
  const T* x = static_cast<const T*>(w.x) + at.first * w.x_row_stride + at.head * w.x_head_stride;
  tile.load(x, w.x_row_stride, at.rows, f.head_dim);

  const T* row = tile.row(threadIdx.x);
  const cuda::WritePlace place(w, slot, at.head);
  uint32_t selected[Words > 0 ? Words : 1] = {};
  if constexpr (Words > 0) select_entries<FloatRank>(w, row, row_index, at.head, selected);
  const bool by_channel = Words > 0 && f.scales == Scales::channel;
  cuda::ChannelScratch scratch{};
  if (by_channel) {
    if (!cuda::whole_block(slot)) return;
    scratch.coding = reinterpret_cast<float2*>(memory + tile_bytes<T>(f));
    scratch.masks = reinterpret_cast<uint32_t*>(scratch.coding + f.head_dim);
#pragma unroll
    for (int g = 0; g < Words; ++g) scratch.masks[threadIdx.x * Words + g] = selected[g];
    cuda::scale_channels(f, tile, scratch, Words, place.block);
  }
  if (slot < 0) return;
  if constexpr (Words > 0) {
    cuda::store_bitmap<Words>(f, selected, place);
    const cuda::Cursor<Words> channels(selected);
    if (by_channel) return cuda::store_by_channel(f, row, channels, place, scratch);
    cuda::store_row(f, row, channels, place);
  } else {
    cuda::store_row(f, row, cuda::Counter{}, place);
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
  if (w.format.has_codes()) return pack_codes(w, call.dtype, stream);
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

void kv_pack_cuda(const KvPackArguments& arguments) { run(arguments.x, prepare_kv_pack(arguments)); }

void kv_append_cuda(const KvAppendArguments& arguments) { run(arguments.x, prepare_kv_pack(arguments)); }

}  // namespace gossamer
