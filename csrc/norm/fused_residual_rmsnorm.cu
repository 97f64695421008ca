#include "fused_residual_rmsnorm.h"
#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/reduce.cuh"
#include "gossamer/cuda/vector.cuh"

namespace gossamer {
namespace {

template <class T>
struct NormArgs {
  const T *x, *residual, *weight;
  T *normed, *new_residual;
  int64_t x_stride, residual_stride, rows;
  int packs;  // per row
  float inverse_width, eps;
};

// h = x + residual rounded to T, stored; returns the sum of its squares.
template <class T, int V>
GOSSAMER_INLINE float add_pack(const cuda::Pack<T, V>& x, const cuda::Pack<T, V>& residual, cuda::Pack<T, V>& h) {
  float a[V], b[V];
  cuda::unpack<T, V>(x, a);
  cuda::unpack<T, V>(residual, b);
#pragma unroll
  for (int i = 0; i < V; ++i) a[i] += b[i];
  h = cuda::pack<T, V>(a);
  cuda::unpack<T, V>(h, a);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) squares += a[i] * a[i];
  return squares;
}

template <class T, int V>
GOSSAMER_INLINE cuda::Pack<T, V> scale_pack(const cuda::Pack<T, V>& h, const cuda::Pack<T, V>& weight, float scale) {
  float a[V], w[V];
  cuda::unpack<T, V>(h, a);
  cuda::unpack<T, V>(weight, w);
#pragma unroll
  for (int i = 0; i < V; ++i) a[i] = a[i] * scale * w[i];
  return cuda::pack<T, V>(a);
}

// 1024 threads leave 64 registers to each, too few for 4 packs of eight values.
template <class T, int K>
constexpr int max_threads = K == 4 && sizeof(T) == 2 ? 512 : 1024;

// One row per blockDim.x threads, blockDim.y rows per block. A thread keeps its K packs of the row in
// registers between the two passes; K = 0 reads them back from new_residual instead (any width).
template <class T, int V, int K>
__global__ void __launch_bounds__(max_threads<T, K>, 1) residual_rmsnorm_kernel(const NormArgs<T> args) {
  __shared__ float scratch[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool active = row < args.rows;  // the last block may have rows to spare
  const int packs = active ? args.packs : 0;
  const T* x = args.x + row * args.x_stride;
  const T* residual = args.residual + row * args.residual_stride;
  T* new_residual = args.new_residual + row * args.packs * V;
  T* normed = args.normed + row * args.packs * V;
  const int step = blockDim.x;

  float squares = 0;
  cuda::Pack<T, V> h[K > 0 ? K : 1];
  if constexpr (K > 0) {
    constexpr int flight = K < 2 ? K : 2;  // packs of each input on their way at once
    cuda::Pack<T, V> other[flight];
#pragma unroll
    for (int k0 = 0; k0 < K; k0 += flight) {
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        const int p = threadIdx.x + (k0 + k) * step;
        if (p < packs) {
          h[k0 + k] = cuda::load<T, V>(x + p * V);
          other[k] = cuda::load<T, V>(residual + p * V);
        }
      }
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        const int p = threadIdx.x + (k0 + k) * step;
        if (p < packs) {
          squares += add_pack<T, V>(h[k0 + k], other[k], h[k0 + k]);
          cuda::store<T, V>(new_residual + p * V, h[k0 + k]);
        }
      }
    }
  } else {
    for (int p = threadIdx.x; p < packs; p += step) {
      squares += add_pack<T, V>(cuda::load<T, V>(x + p * V), cuda::load<T, V>(residual + p * V), h[0]);
      cuda::store<T, V>(new_residual + p * V, h[0]);
    }
  }

  const float scale = rsqrtf(cuda::row_sum(squares, scratch) * args.inverse_width + args.eps);

  if constexpr (K > 0) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int p = threadIdx.x + k * step;
      if (p < packs) {
        cuda::store<T, V>(normed + p * V, scale_pack<T, V>(h[k], cuda::load<T, V>(args.weight + p * V), scale));
      }
    }
  } else {
    for (int p = threadIdx.x; p < packs; p += step) {  // the packs this thread wrote itself
      h[0] = cuda::load<T, V>(new_residual + p * V);
      cuda::store<T, V>(normed + p * V, scale_pack<T, V>(h[0], cuda::load<T, V>(args.weight + p * V), scale));
    }
  }
}

int round_up_to_power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

template <class T, int V>
void launch(const NormArgs<T>& args, cudaStream_t stream) {
  // Two packs per thread hide latency with few idle lanes; up to 512 threads, so that a multiprocessor
  // has several rows at work and one of them is always loading; only very wide rows need more.
  int threads = round_up_to_power_of_two((args.packs + 1) / 2);
  threads = threads < 32 ? 32 : threads > 512 ? 512 : threads;
  if (args.packs > 4 * threads) threads = 1024;
  const int rows_per_block = threads < 256 ? 256 / threads : 1;
  const int64_t blocks = (args.rows + rows_per_block - 1) / rows_per_block;
  STD_TORCH_CHECK(blocks < (int64_t{1} << 31), "fused_residual_rmsnorm: too many rows: ", args.rows);
  const int per_thread = (args.packs + threads - 1) / threads;
  auto* kernel = residual_rmsnorm_kernel<T, V, 0>;
  if constexpr (V > 1) {
    if (per_thread <= 1) {
      kernel = residual_rmsnorm_kernel<T, V, 1>;
    } else if (per_thread <= 2) {
      kernel = residual_rmsnorm_kernel<T, V, 2>;
    } else if (per_thread <= 4 && threads <= max_threads<T, 4>) {
      kernel = residual_rmsnorm_kernel<T, V, 4>;
    }
  }
  const dim3 grid(static_cast<unsigned>(blocks)), block(threads, rows_per_block);
  kernel<<<grid, block, 0, stream>>>(args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <class T>
bool can_pack(const NormArgs<T>& args, int64_t width, int length) {
  return width % length == 0 && args.x_stride % length == 0 && args.residual_stride % length == 0 &&
         cuda::aligned(args.x, cuda::kVectorBytes) && cuda::aligned(args.residual, cuda::kVectorBytes) &&
         cuda::aligned(args.weight, cuda::kVectorBytes);
}

}  // namespace

std::tuple<Tensor, Tensor> fused_residual_rmsnorm_cuda(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                                       double eps) {
  const ResidualRmsNormCall call = prepare_fused_residual_rmsnorm(x, residual, weight, eps);
  if (call.x.count == 0) return {call.normed, call.new_residual};
  const cuda::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(x);
  cuda::for_dtype(call.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int length = cuda::vector_length<T>;
    NormArgs<T> args{static_cast<const T*>(call.x.tensor.const_data_ptr()),
                     static_cast<const T*>(call.residual.tensor.const_data_ptr()),
                     static_cast<const T*>(call.weight.const_data_ptr()),
                     static_cast<T*>(call.normed.mutable_data_ptr()),
                     static_cast<T*>(call.new_residual.mutable_data_ptr()),
                     call.x.stride,
                     call.residual.stride,
                     call.x.count,
                     static_cast<int>(call.x.width),
                     1.0f / static_cast<float>(call.x.width),
                     static_cast<float>(eps)};
    if (can_pack(args, call.x.width, length)) {
      args.packs /= length;
      launch<T, length>(args, stream);
    } else {
      launch<T, 1>(args, stream);
    }
  });
  return {call.normed, call.new_residual};
}

}  // namespace gossamer
