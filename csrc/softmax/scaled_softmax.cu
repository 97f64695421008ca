#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/fast_math.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/reduce.cuh"
#include "gossamer/cuda/vector.cuh"
#include "scaled_softmax.h"

namespace gossamer {
namespace {

constexpr int64_t kMaxWidth = 8192;  // what 512 threads hold in registers; wider rows go to the Triton kernel

// -inf, where no element is larger, makes NaN of the row, as in torch.
GOSSAMER_INLINE float exponential(float x, float top) { return cuda::FastMath::exp(x - top); }

// One row per blockDim.x threads, blockDim.y rows per block. A thread keeps its K packs of the row in registers.
template <class T, int V, int K>
__global__ void __launch_bounds__(512) softmax_kernel(const ScaledSoftmax work, int packs_per_row) {
  __shared__ float scratch[2][32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int packs = row < work.rows ? packs_per_row : 0;  // the last block may have rows to spare
  const T* x = static_cast<const T*>(work.x) + row * work.x_stride;
  T* out = static_cast<T*>(work.out) + row * work.width;
  cuda::Pack<T, V> in[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int p = threadIdx.x + k * blockDim.x;
    if (p < packs) in[k] = cuda::load<T, V>(x + p * V);
  }
  float value[K][V], top = -INFINITY, total = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (threadIdx.x + k * blockDim.x >= packs) continue;
    cuda::unpack<T, V>(in[k], value[k]);
#pragma unroll
    for (int i = 0; i < V; ++i) top = fmaxf(top, value[k][i] *= work.scale);
  }
  top = cuda::row_max(top, scratch[0]);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (threadIdx.x + k * blockDim.x >= packs) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) total += value[k][i] = exponential(value[k][i], top);
  }
  const float inverse = 1.0f / cuda::row_sum(total, scratch[1]);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int p = threadIdx.x + k * blockDim.x;
    if (p >= packs) continue;
#pragma unroll
    for (int i = 0; i < V; ++i) value[k][i] *= inverse;
    cuda::store<T, V>(out + p * V, cuda::pack<T, V>(value[k]));
  }
}

// Rows that cannot be read in packs: element by element, three times, from L1 or L2 after the first.
template <class T>
__global__ void __launch_bounds__(1024) softmax_elements_kernel(const ScaledSoftmax work) {
  __shared__ float scratch[2][32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int width = row < work.rows ? static_cast<int>(work.width) : 0;
  const T* x = static_cast<const T*>(work.x) + row * work.x_stride;
  T* out = static_cast<T*>(work.out) + row * work.width;
  float top = -INFINITY, total = 0;
  for (int i = threadIdx.x; i < width; i += blockDim.x) top = fmaxf(top, static_cast<float>(x[i]) * work.scale);
  top = cuda::row_max(top, scratch[0]);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    total += exponential(static_cast<float>(x[i]) * work.scale, top);
  }
  const float inverse = 1.0f / cuda::row_sum(total, scratch[1]);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    out[i] = static_cast<T>(exponential(static_cast<float>(x[i]) * work.scale, top) * inverse);
  }
}

template <class T>
void launch(const ScaledSoftmax& work, cudaStream_t stream) {
  constexpr int V = cuda::vector_length<T>;
  const bool packed = work.width % V == 0 && work.x_stride % V == 0 && cuda::aligned(work.x, cuda::kVectorBytes);
  const int packs = static_cast<int>(packed ? work.width / V : work.width);
  int threads = 32;  // two packs per thread hide latency with few idle lanes
  while (threads < 512 && 2 * threads < packs) threads *= 2;
  if (!packed && packs > 4096) threads = 1024;
  const int rows_per_block = threads < 256 ? 256 / threads : 1;
  const int64_t blocks = (work.rows + rows_per_block - 1) / rows_per_block;
  STD_TORCH_CHECK(blocks < (int64_t{1} << 31), "scaled_softmax: too many rows: ", work.rows);
  const dim3 grid(static_cast<unsigned>(blocks)), block(threads, rows_per_block);
  if (!packed) {
    softmax_elements_kernel<T><<<grid, block, 0, stream>>>(work);
  } else if (packs <= threads) {
    softmax_kernel<T, V, 1><<<grid, block, 0, stream>>>(work, packs);
  } else if (packs <= 2 * threads) {
    softmax_kernel<T, V, 2><<<grid, block, 0, stream>>>(work, packs);
  } else {
    softmax_kernel<T, V, sizeof(T)><<<grid, block, 0, stream>>>(work, packs);  // 4 packs: in float32 alone
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

Tensor scaled_softmax_cuda(const Tensor& x, double scale) {
  const ScaledSoftmaxCall call = prepare_scaled_softmax(x, scale);
  if (call.work.rows == 0) return call.out;
  STD_TORCH_CHECK(call.work.width <= kMaxWidth, "scaled_softmax: the last dimension of x is ", call.work.width,
                  "; must be at most ", kMaxWidth, " for the CUDA kernel");
  const cuda::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(x);
  cuda::for_dtype(call.work.dtype, [&](auto element) { launch<decltype(element)>(call.work, stream); });
  return call.out;
}

}  // namespace gossamer
