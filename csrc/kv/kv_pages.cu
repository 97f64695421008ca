#include "gossamer/cuda/launch.h"
#include "kv/kv_pages.h"

namespace gossamer {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 4;  // words of a thread on their way at once
constexpr int kPairs = 224;   // pages of a launch; more do not fit into its 4 KB of arguments

// Indices travel with the launch: no copy of them to the GPU, no memory that must outlive the call.
struct PageList {
  const char* source;
  char* target;
  int64_t source_stride, target_stride, words;
  int64_t from[kPairs], to[kPairs];
};

// blockIdx.y is a pair of pages; blocks along x share a page.
template <class Word>
__global__ void __launch_bounds__(kThreads) page_kernel(const __grid_constant__ PageList list) {
  const Word* from = reinterpret_cast<const Word*>(list.source + list.from[blockIdx.y] * list.source_stride);
  Word* to = reinterpret_cast<Word*>(list.target + list.to[blockIdx.y] * list.target_stride);
  constexpr int64_t block = kThreads * kInFlight;
  for (int64_t start = blockIdx.x * block + threadIdx.x; start < list.words; start += gridDim.x * block) {
    Word word[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (start + u * kThreads < list.words) word[u] = from[start + u * kThreads];
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (start + u * kThreads < list.words) to[start + u * kThreads] = word[u];
    }
  }
}

template <class Word>
void launch(const PageMoves& moves, cudaStream_t stream) {
  PageList list{moves.source,
                moves.target,
                moves.source_stride,
                moves.target_stride,
                moves.page_bytes / static_cast<int64_t>(sizeof(Word)),
                {},
                {}};
  const int64_t blocks = (list.words - 1) / (kThreads * kInFlight) + 1;
  for (int64_t start = 0; start < moves.count; start += kPairs) {
    const int64_t count = moves.count - start < kPairs ? moves.count - start : kPairs;
    for (int64_t i = 0; i < count; ++i) {
      list.from[i] = moves.from[(start + i) * moves.from_step];
      list.to[i] = moves.to[(start + i) * moves.to_step];
    }
    const dim3 grid(static_cast<unsigned>(blocks < 1024 ? blocks : 1024), static_cast<unsigned>(count));
    page_kernel<Word><<<grid, kThreads, 0, stream>>>(list);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

void launch(const PageMoves& moves, cudaStream_t stream) {
  const bool wide = cuda::aligned(moves.source, 16) && cuda::aligned(moves.target, 16) &&
                    moves.source_stride % 16 == 0 && moves.target_stride % 16 == 0 && moves.page_bytes % 16 == 0;
  if (wide) {
    launch<uint4>(moves, stream);
  } else {
    launch<uint8_t>(moves, stream);
  }
}

// One copy for every run of pages that follow each other in both pools.
void copy_runs(const PageMoves& moves, cudaStream_t stream) {
  const bool dense = moves.source_stride == moves.page_bytes && moves.target_stride == moves.page_bytes;
  for (int64_t i = 0, length = 0; i < moves.count; i += length) {
    const int64_t from = moves.from[i * moves.from_step], to = moves.to[i * moves.to_step];
    length = 1;
    while (dense && i + length < moves.count && moves.from[(i + length) * moves.from_step] == from + length &&
           moves.to[(i + length) * moves.to_step] == to + length) {
      ++length;
    }
    STD_CUDA_CHECK(cudaMemcpyAsync(moves.target + to * moves.target_stride, moves.source + from * moves.source_stride,
                                   length * moves.page_bytes, cudaMemcpyDefault, stream));
  }
}

// Where a kernel on the current device finds this memory; null where it cannot.
void* on_device(const Tensor& pages, int device) {
  if (!pages.is_cpu()) return pages.get_device_index() == device ? pages.mutable_data_ptr() : nullptr;
  cudaPointerAttributes attributes{};
  STD_CUDA_CHECK(cudaPointerGetAttributes(&attributes, pages.const_data_ptr()));
  return attributes.type == cudaMemoryTypeHost ? attributes.devicePointer : nullptr;  // pinned
}

}  // namespace

void kv_page_copy_cuda(const Tensor& pages, const Tensor& source, const Tensor& target) {
  const PageMoves moves = prepare_kv_page_copy(pages, source, target);
  if (moves.count == 0 || moves.page_bytes == 0) return;
  const cuda::DeviceGuard guard(pages.get_device_index());
  launch(moves, cuda::current_stream(pages));
}

void kv_page_swap_cuda(const Tensor& source_pages, const Tensor& target_pages, const Tensor& source,
                       const Tensor& target) {
  PageMoves moves = prepare_kv_page_swap(source_pages, target_pages, source, target);
  if (moves.count == 0 || moves.page_bytes == 0) return;
  const Tensor& ours = target_pages.is_cpu() ? source_pages : target_pages;
  const int device = ours.get_device_index();
  const cuda::DeviceGuard guard(device);
  const cudaStream_t stream = cuda::current_stream(ours);
  void* from = on_device(source_pages, device);
  void* to = on_device(target_pages, device);
  if (from == nullptr || to == nullptr) return copy_runs(moves, stream);  // pageable memory, or another GPU
  moves.source = static_cast<const char*>(from);
  moves.target = static_cast<char*>(to);
  launch(moves, stream);
}

}  // namespace gossamer
