#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/reduce.cuh"
#include "rope/turn.cuh"

namespace gossamer {
namespace {

constexpr int kThreads = 256;

// Two packs of a row, V pairs of channels, or one pack of channels that are not turned; with what they are multiplied
// by, all of it on its way before the sum of squares is known.
template <class T, int V, bool Interleaved>
struct NormedColumn {
  cuda::Pack<T, V> x[2], weight[2];
  float cos[V], sin[V];
  bool turned;
  int64_t at[2];  // channels

  __device__ NormedColumn(const Rope& work, const T* row, const T* weights, int64_t position, int64_t column)
      : turned(column < work.pairs / V) {
    const Columns<V, Interleaved> place{work.pairs};
    at[0] = turned ? place.first(column) : column * V + work.pairs;
    at[1] = turned ? place.second(column) : at[0];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      x[k] = load_channels<T, V>(work, row, at[k]);
      weight[k] = cuda::load<T, V>(weights + at[k]);
    }
    if (!turned) return;
    load_angles<V>(work, work.cos, position, column, cos);
    load_angles<V>(work, work.sin, position, column, sin);
  }

  __device__ float squares() const {
    float total = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float value[V];
      cuda::unpack<T, V>(x[k], value);
#pragma unroll
      for (int i = 0; i < V; ++i) total += k == 0 || turned ? value[i] * value[i] : 0.0f;
    }
    return total;
  }

  // Scaled, weighted, turned; rounded once, at the end. A wrong position makes NaN.
  __device__ void write(float scale, bool valid, T* out) const {
    float y[2][V], w[V];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      cuda::unpack<T, V>(x[k], y[k]);
      cuda::unpack<T, V>(weight[k], w);
#pragma unroll
      for (int i = 0; i < V; ++i) y[k][i] = valid ? y[k][i] * scale * w[i] : nanf("");
    }
    if (turned) {
      turn_floats<V, Interleaved>(y, cos, sin);
      cuda::store<T, V>(out + at[1], cuda::pack<T, V>(y[1]));
    }
    cuda::store<T, V>(out + at[0], cuda::pack<T, V>(y[0]));
  }
};

// One row (a head of a token) per blockDim.x lanes, blockDim.y rows per block. Once: a lane has at most one column,
// which stays in registers; else columns are read again, from L1.
template <class T, int V, bool Interleaved, bool Once>
__global__ void __launch_bounds__(kThreads) rmsnorm_rope_kernel(const Rope work) {
  using Column = NormedColumn<T, V, Interleaved>;
  const int64_t rows = work.tokens * work.heads;
  const int64_t asked = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool inside = asked < rows;
  const int64_t row = inside ? asked : rows - 1;  // all lanes of a warp take part in its sums
  const int64_t token =
      rows < (int64_t{1} << 31) ? static_cast<uint32_t>(row) / static_cast<uint32_t>(work.heads) : row / work.heads;
  const int64_t head = row - token * work.heads;
  const int64_t position = work.positions[token * work.position_stride];
  const T* x = static_cast<const T*>(work.x) + token * work.token_stride + head * work.head_stride;
  const T* weight = static_cast<const T*>(work.weight) + head * work.weight_head_stride;
  T* out = static_cast<T*>(work.out) + row * work.head_dim;
  const int64_t columns = (work.head_dim - work.pairs) / V;
  const float inverse = 1.0f / static_cast<float>(work.head_dim);
  const bool valid = position >= 0 && position < work.max_positions;
  if constexpr (Once) {
    const int64_t column = threadIdx.x < columns ? threadIdx.x : columns - 1;
    const Column mine(work, x, weight, position, column);
    const float squares = threadIdx.x < columns ? mine.squares() : 0.0f;
    const float scale = rsqrtf(cuda::lanes_reduce<cuda::Sum>(squares, blockDim.x) * inverse + work.eps);
    if (inside && threadIdx.x < columns) mine.write(scale, valid, out);
  } else {
    float squares = 0;
    for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      squares += Column(work, x, weight, position, c).squares();
    }
    const float scale = rsqrtf(cuda::lanes_reduce<cuda::Sum>(squares, blockDim.x) * inverse + work.eps);
    if (!inside) return;
    for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
      Column(work, x, weight, position, c).write(scale, valid, out);
    }
  }
}

template <class T, int V>
void launch(const Rope& work, cudaStream_t stream) {
  const int64_t columns = (work.head_dim - work.pairs) / V;
  unsigned lanes = 1;
  while (lanes < columns && lanes < 32) lanes *= 2;
  const dim3 block(lanes, kThreads / lanes);
  const int64_t blocks = (work.tokens * work.heads - 1) / block.y + 1;
  STD_TORCH_CHECK(blocks < (int64_t{1} << 31), "rmsnorm_rope: too many rows: ", work.tokens * work.heads);
  auto* kernel = work.interleaved ? rmsnorm_rope_kernel<T, V, true, false> : rmsnorm_rope_kernel<T, V, false, false>;
  if (columns <= lanes) {
    kernel = work.interleaved ? rmsnorm_rope_kernel<T, V, true, true> : rmsnorm_rope_kernel<T, V, false, true>;
  }
  kernel<<<static_cast<unsigned>(blocks), block, 0, stream>>>(work);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

Tensor rmsnorm_rope_cuda(const Tensor& x, const Tensor& weight, const Tensor& positions, const Tensor& cos,
                         const Tensor& sin, double eps, bool interleaved) {
  const RopeCall call = prepare_rmsnorm_rope(x, weight, positions, cos, sin, eps, interleaved);
  if (x.numel() == 0) return call.out;
  const cuda::DeviceGuard guard(x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(x);
  cuda::for_dtype(call.work.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int length = cuda::vector_length<T>;
    if (can_pack(call.work, length) && cuda::aligned(call.work.weight, cuda::kVectorBytes)) {
      launch<T, length>(call.work, stream);
    } else {
      launch<T, 1>(call.work, stream);
    }
  });
  return call.out;
}

}  // namespace gossamer
