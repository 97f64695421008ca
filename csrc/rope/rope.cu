#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/vector.cuh"
#include "rope/rope.h"

namespace gossamer {
namespace {

constexpr int kRopeThreads = 256;
// Heads that a thread turns by the same cos and sin, all on their way at once: 128 bytes in flight. cos and sin
// are as many bytes as two heads in 16 bits, so that each further head saves reading them again from L1.
constexpr int kHeadsPerThread = 4;

// A column is V pairs of channels: two packs, whose places in a row depend on how channels are paired; or, from
// `turned` columns on, V channels to copy. V = 1 takes any strides.
template <int V, bool Interleaved>
struct Columns {
  int64_t pairs;

  __device__ int64_t first(int64_t column) const { return (Interleaved ? 2 : 1) * column * V; }
  __device__ int64_t second(int64_t column) const { return first(column) + (Interleaved ? V : pairs); }
};

template <class T, int V>
GOSSAMER_INLINE cuda::Pack<T, V> load_channels(const Rope& work, const T* row, int64_t channel) {
  return cuda::load<T, V>(row + (V == 1 ? channel * work.channel_stride : channel));
}

// The result is contiguous, or x itself. Two kernels, as strides for both would cost: 2048 tokens of 40 heads in
// bfloat16 take 15 us so, interleaved too, and with strides 16 and 23 on an H200.
template <int V>
GOSSAMER_INLINE int64_t in_place(const Rope& work, int64_t head, int64_t channel) {
  return head * work.head_stride + (V == 1 ? channel * work.channel_stride : channel);
}

// V pairs in two packs, turned.
template <class T, int V, bool Interleaved>
GOSSAMER_INLINE void turn(cuda::Pack<T, V>& first, cuda::Pack<T, V>& second, const float (&cos)[V],
                          const float (&sin)[V]) {
  float x[2][V], y[2][V];
  cuda::unpack<T, V>(first, x[0]);
  cuda::unpack<T, V>(second, x[1]);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int a = Interleaved ? 2 * i : i, b = Interleaved ? 2 * i + 1 : V + i;
    y[a / V][a % V] = x[a / V][a % V] * cos[i] - x[b / V][b % V] * sin[i];
    y[b / V][b % V] = x[b / V][b % V] * cos[i] + x[a / V][a % V] * sin[i];
  }
  first = cuda::pack<T, V>(y[0]);
  second = cuda::pack<T, V>(y[1]);
}

// One column of the heads first_head, first_head + blockDim.y, ... of a token.
template <class T, int V, bool Interleaved, bool InPlace>
GOSSAMER_INLINE void turn_column(const Rope& work, int64_t token, int64_t position, int64_t first_head,
                                 int64_t column) {
  const Columns<V, Interleaved> at{work.pairs};
  const T* x = static_cast<const T*>(work.x) + token * work.token_stride;
  T* out = static_cast<T*>(work.out) + token * work.heads * work.head_dim;
  cuda::Pack<T, V> packs[kHeadsPerThread][2];
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int64_t head = first_head + h * blockDim.y;
    if (head < work.heads) {
      packs[h][0] = load_channels<T, V>(work, x + head * work.head_stride, at.first(column));
      packs[h][1] = load_channels<T, V>(work, x + head * work.head_stride, at.second(column));
    }
  }
  float cos[V], sin[V];
#pragma unroll
  for (int i = 0; i < V; ++i) cos[i] = sin[i] = nanf("");  // what a position out of range makes of a row
  if (position >= 0 && position < work.max_positions) {
    cuda::load_floats<float, V>(work.cos + position * work.pairs + column * V, cos);
    cuda::load_floats<float, V>(work.sin + position * work.pairs + column * V, sin);
  }
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int64_t head = first_head + h * blockDim.y;
    if (head < work.heads) {
      turn<T, V, Interleaved>(packs[h][0], packs[h][1], cos, sin);
      if constexpr (InPlace) {
        T* here = static_cast<T*>(work.out) + token * work.token_stride;
        cuda::store<T, V>(here + in_place<V>(work, head, at.first(column)), packs[h][0]);
        cuda::store<T, V>(here + in_place<V>(work, head, at.second(column)), packs[h][1]);
      } else {
        cuda::store<T, V>(out + head * work.head_dim + at.first(column), packs[h][0]);
        cuda::store<T, V>(out + head * work.head_dim + at.second(column), packs[h][1]);
      }
    }
  }
}

// The same for channels that are not turned, from `channel` on.
template <class T, int V, bool InPlace>
GOSSAMER_INLINE void copy_column(const Rope& work, int64_t token, int64_t position, int64_t first_head,
                                 int64_t channel) {
  float nan[V];
#pragma unroll
  for (int i = 0; i < V; ++i) nan[i] = nanf("");
  const bool valid = position >= 0 && position < work.max_positions;
  if (InPlace && valid) return;
  const T* x = static_cast<const T*>(work.x) + token * work.token_stride;
  T* out = static_cast<T*>(work.out) + token * work.heads * work.head_dim + channel;
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int64_t head = first_head + h * blockDim.y;
    if (head >= work.heads) return;
    const T* row = x + head * work.head_stride;
    if constexpr (InPlace) {
      T* here = static_cast<T*>(work.out) + token * work.token_stride;
      cuda::store<T, V>(here + in_place<V>(work, head, channel), cuda::pack<T, V>(nan));
    } else {
      cuda::store<T, V>(out + head * work.head_dim,
                        valid ? load_channels<T, V>(work, row, channel) : cuda::pack<T, V>(nan));
    }
  }
}

// blockDim.x threads along the columns of a head, blockDim.y along heads, blockDim.z along tokens.
template <class T, int V, bool Interleaved, bool InPlace>
__global__ void __launch_bounds__(kRopeThreads) rope_kernel(const Rope work) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  if (token >= work.tokens) return;
  const int64_t position = work.positions[token * work.position_stride];
  const int64_t turned = work.pairs / V, columns = work.head_dim / V - turned;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y * kHeadsPerThread;
  for (int64_t group = static_cast<int64_t>(blockIdx.y) * blockDim.y * kHeadsPerThread; group < work.heads;
       group += step) {
    for (int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
      if (column < turned) {
        turn_column<T, V, Interleaved, InPlace>(work, token, position, group + threadIdx.y, column);
      } else {
        copy_column<T, V, InPlace>(work, token, position, group + threadIdx.y, column * V + work.pairs);
      }
    }
  }
}

template <class T, int V>
void launch(const Rope& work, bool in_place, cudaStream_t stream) {
  const auto at_most = [](int64_t n, int64_t limit) { return static_cast<unsigned>(n < limit ? n : limit); };
  const int64_t columns = (work.head_dim - work.pairs) / V;
  const int64_t groups = (work.heads - 1) / kHeadsPerThread + 1;
  dim3 block;
  block.x = at_most(columns, kRopeThreads);
  block.y = at_most(groups, kRopeThreads / block.x);
  block.z = at_most(work.tokens, at_most(kRopeThreads / (block.x * block.y), 64));
  const int64_t token_blocks = (work.tokens - 1) / block.z + 1, head_blocks = (groups - 1) / block.y + 1;
  STD_TORCH_CHECK(token_blocks < (int64_t{1} << 31), "rope: too many tokens: ", work.tokens);
  const dim3 grid(static_cast<unsigned>(token_blocks), at_most(head_blocks, 65535));
  auto* kernel = in_place ? (work.interleaved ? rope_kernel<T, V, true, true> : rope_kernel<T, V, false, true>)
                          : (work.interleaved ? rope_kernel<T, V, true, false> : rope_kernel<T, V, false, false>);
  kernel<<<grid, block, 0, stream>>>(work);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// Whether packs of x, of the result and of cos and sin begin at multiples of 16 bytes.
bool can_pack(const Rope& work, int length) {
  return work.pairs % length == 0 && work.head_dim % length == 0 && work.channel_stride == 1 &&
         work.token_stride % length == 0 && work.head_stride % length == 0 &&
         cuda::aligned(work.x, cuda::kVectorBytes) && cuda::aligned(work.cos, cuda::kVectorBytes) &&
         cuda::aligned(work.sin, cuda::kVectorBytes);
}

void turn(const RopeCall& call) {
  if (call.x.numel() == 0) return;
  const cuda::DeviceGuard guard(call.x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(call.x);
  cuda::for_dtype(call.work.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int length = cuda::vector_length<T>;
    if (can_pack(call.work, length)) {
      launch<T, length>(call.work, call.work.in_place, stream);
    } else {
      launch<T, 1>(call.work, call.work.in_place, stream);
    }
  });
}

}  // namespace

Tensor rope_cuda(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved) {
  RopeCall call = prepare_rope("rope", x, positions, cos, sin, interleaved);
  write_to(call, empty_contiguous(x, x.sizes()));
  turn(call);
  return call.out;
}

// A thread reads both channels of a pair before it writes them, and no other thread reads them.
void rope_inplace_cuda(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin,
                       bool interleaved) {
  RopeCall call = prepare_rope("rope_inplace", x, positions, cos, sin, interleaved);
  check_apart("rope_inplace", x);
  call.work.in_place = true;
  write_to(call, x);
  turn(call);
}

}  // namespace gossamer
