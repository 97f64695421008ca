// The kernel that rmsnorm, fused_residual_rmsnorm and fused_residual_layernorm share, and its launch.
#pragma once

#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/reduce.cuh"
#include "norm.h"
#include "norm_row.cuh"

namespace gossamer {
namespace {

// Elements of a row that a thread keeps where they cannot be packed: rows of up to 8192 then are read once.
constexpr int kSingles = 8;
// Of them on their way at once. With all of two inputs, sm_80 would spill registers.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr int kSinglesInFlight = kSingles;
#else
constexpr int kSinglesInFlight = kSingles / 2;
#endif

// 1024 threads leave 64 registers to each, too few for 4 packs of eight values.
template <class T, int K>
constexpr int max_threads = K == 4 && sizeof(T) == 2 ? 512 : 1024;

// From here on every multiprocessor has several rows at work all the time.
constexpr int64_t kManyRows = 16384;

// One row per blockDim.x threads, blockDim.y rows per block. A thread keeps its K packs of the row in registers.
// kBlocks: that a multiprocessor should hold at least. Where that is more than one, all packs are asked for at once.
template <class T, int V, int K, NormForm F, int kThreads = max_threads<T, K>, int kBlocks = 1>
__global__ void __launch_bounds__(kThreads, kBlocks) norm_kernel(const NormArgs<T> args) {
  using Row = NormRow<T, V, F>;
  using Pack = typename Row::Pack;
  __shared__ float scratch[2][32];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int packs = index < args.rows ? args.packs : 0;  // the last block may have rows to spare
  const Row row(args, index);
  const int step = blockDim.x, first = threadIdx.x;

  // Packs of each input on their way at once.
  constexpr int flight = V == 1 ? kSinglesInFlight : K < 2 || kBlocks > 1 ? K : 2;
  constexpr bool early = K <= 2;  // and the weight with them: a decode step finds none of it in a cache
  Pack h[K], weight[early ? K : 1], bias[early ? K : 1];
  float total = 0;
#pragma unroll
  for (int k0 = 0; k0 < K; k0 += flight) {
    typename Row::Inputs in[flight];
#pragma unroll
    for (int k = 0; k < flight; ++k) {
      const int p = first + (k0 + k) * step;
      if (p < packs) in[k] = row.load(p);
    }
#pragma unroll
    for (int k = 0; k < flight; ++k) {
      const int p = first + (k0 + k) * step;
      if (early && p < packs) {
        weight[k] = row.weight(p);
        bias[k] = row.bias(p);
      }
    }
#pragma unroll
    for (int k = 0; k < flight; ++k) {
      const int p = first + (k0 + k) * step;
      if (p < packs) {
        h[k0 + k] = row.take(in[k], p);
        total += Row::moment(h[k0 + k], !Row::layer, 0.0f);
      }
    }
  }
  float mean = 0;
  if constexpr (Row::layer) {
    mean = cuda::row_sum(total, scratch[0]) * args.inverse_width;
    total = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (first + k * step < packs) total += Row::moment(h[k], true, mean);
    }
  }
  const float scale = rsqrtf(cuda::row_sum(total, scratch[1]) * args.inverse_width + args.eps);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int p = first + k * step;
    if (p >= packs) continue;
    if constexpr (early) {
      row.write(p, h[k], weight[k], bias[k], mean, scale);
    } else {
      row.write(p, h[k], row.weight(p), row.bias(p), mean, scale);
    }
  }
}

// Rows of any width, one per block, read back from memory (most of it from L2) for each further pass.
template <class T, int V, NormForm F>
__global__ void __launch_bounds__(1024, 1) norm_kernel_wide(const NormArgs<T> args) {
  using Row = NormRow<T, V, F>;
  __shared__ float scratch[2][32];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int packs = index < args.rows ? args.packs : 0;
  const Row row(args, index);
  const int step = blockDim.x;
  float total = 0, mean = 0;
  for (int p = threadIdx.x; p < packs; p += step) {
    total += Row::moment(row.take(row.load(p), p), !Row::layer, 0.0f);
  }
  if constexpr (Row::layer) {
    mean = cuda::row_sum(total, scratch[0]) * args.inverse_width;
    total = 0;
    for (int p = threadIdx.x; p < packs; p += step) total += Row::moment(row.taken(p), true, mean);
  }
  const float scale = rsqrtf(cuda::row_sum(total, scratch[1]) * args.inverse_width + args.eps);
  for (int p = threadIdx.x; p < packs; p += step) {
    row.write(p, row.taken(p), row.weight(p), row.bias(p), mean, scale);
  }
}

inline int round_up_to_power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

inline int whole_warps(int threads) { return (threads + 31) / 32 * 32; }

struct NormPlan {
  int threads, per_thread;  // of a row
};

// Packs: two per thread hide latency with few idle lanes, several rows to a warp if they are narrow; up to 512 threads,
// so that a multiprocessor has several rows at work and one of them is always loading; only very wide rows need more.
// Narrow rows have one pack per thread: 262,144 x 128 with a residual takes 65.3 us so on an H200, and 67.3 with two.
//
// Many rows of 513 to 1024 packs of 16-bit elements have four per thread, asked for at once: 32,768 x 8192 take 257 us
// so, and 262 with two; with a residual as well it is 517 and 514.
template <class T, NormForm F>
NormPlan plan_packs(int packs, int64_t rows) {
  if (packs <= 32) return {round_up_to_power_of_two(packs), 1};
  const bool wide = packs > 512 && packs <= 1024;
  if (sizeof(T) == 2 && F == NormForm::rms && wide && rows >= kManyRows) return {whole_warps((packs + 3) / 4), 4};
  int threads = whole_warps((packs + 1) / 2);
  threads = threads > 512 ? 512 : threads;
  if (packs > 4 * threads) threads = 1024;
  return {threads, (packs + threads - 1) / threads};
}

// Single elements: as many loads on their way as registers allow. 16,384 x 4097 with a residual in bfloat16 takes 207
// us so on an H200; 286 where all threads of a block loop over the row and read it back.
inline NormPlan plan_singles(int width) {
  const int threads = (width + kSingles - 1) / kSingles;
  if (threads <= 32) return {round_up_to_power_of_two(threads), kSingles};
  if (threads <= 1024) return {whole_warps(threads), kSingles};
  return {1024, (width + 1023) / 1024};
}

template <class T, int V, NormForm F>
auto* norm_kernel_of(const NormPlan& plan) {
  if constexpr (V == 1) {
    return plan.per_thread <= kSingles ? norm_kernel<T, 1, kSingles, F> : norm_kernel_wide<T, 1, F>;
  } else {
    if (plan.per_thread <= 1) return norm_kernel<T, V, 1, F>;
    if (plan.per_thread <= 2) return norm_kernel<T, V, 2, F>;
    if constexpr (F == NormForm::rms && sizeof(T) == 2) {
      if (plan.threads <= 256 && plan.per_thread == 4) return norm_kernel<T, V, 4, F, 256, 4>;
    }
    return plan.per_thread <= 4 && plan.threads <= max_threads<T, 4> ? norm_kernel<T, V, 4, F>
                                                                     : norm_kernel_wide<T, V, F>;
  }
}

template <class T, int V, NormForm F>
void launch_norm(const char* op, const NormArgs<T>& args, cudaStream_t stream) {
  const NormPlan plan = V == 1 ? plan_singles(args.packs) : plan_packs<T, F>(args.packs, args.rows);
  const int rows_per_block = plan.threads < 256 ? 256 / plan.threads : 1;
  const int64_t blocks = (args.rows + rows_per_block - 1) / rows_per_block;
  STD_TORCH_CHECK(blocks < (int64_t{1} << 31), op, ": too many rows: ", args.rows);
  const dim3 grid(static_cast<unsigned>(blocks)), block(plan.threads, rows_per_block);
  auto* kernel = norm_kernel_of<T, V, F>(plan);
  kernel<<<grid, block, 0, stream>>>(args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <class T>
bool can_pack(const NormArgs<T>& args, int64_t width, int length) {
  bool aligned = width % length == 0 && args.x_stride % length == 0 && args.residual_stride % length == 0;
  const T* const inputs[] = {args.x, args.residual, args.input_bias, args.weight, args.bias};
  for (const T* p : inputs) {
    aligned = aligned && cuda::aligned(p, cuda::kVectorBytes);  // null is
  }
  return aligned;
}

template <NormForm F>
void norm_cuda(const char* op, const NormCall& call) {
  const Norm& w = call.work;
  if (w.rows == 0) return;
  const cuda::DeviceGuard guard(call.normed.get_device_index());
  const cudaStream_t stream = cuda::current_stream(call.normed);
  cuda::for_dtype(w.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int length = cuda::vector_length<T>;
    NormArgs<T> args{static_cast<const T*>(w.x),
                     static_cast<const T*>(w.residual),
                     static_cast<const T*>(w.input_bias),
                     static_cast<const T*>(w.weight),
                     static_cast<const T*>(w.bias),
                     static_cast<T*>(w.normed),
                     static_cast<T*>(w.sum),
                     w.x_stride,
                     w.residual_stride,
                     w.rows,
                     static_cast<int>(w.width),
                     1.0f / static_cast<float>(w.width),
                     w.eps};
    if (can_pack(args, w.width, length)) {
      args.packs /= length;
      launch_norm<T, length, F>(op, args, stream);
    } else {
      launch_norm<T, 1, F>(op, args, stream);
    }
  });
}

}  // namespace
}  // namespace gossamer
