#include "gossamer/cuda/dtype.cuh"
#include "rope/turn.cuh"

namespace gossamer {
namespace {

constexpr int kRopeThreads = 256;
// Heads that a thread turns by the same cos and sin, all on their way at once: 128 bytes in flight. cos and sin
// are as many bytes as two heads in 16 bits, so that each further head saves reading them again from L1.
// Where there is little work, one head each: shorter code, which a cold call waits for, on more multiprocessors.
constexpr int kHeadsPerThread = 4;
constexpr int64_t kFewColumns = 132 * 4 * kRopeThreads;

// V pairs in two packs, turned.
template <class T, int V, bool Interleaved>
GOSSAMER_INLINE void turn(cuda::Pack<T, V>& first, cuda::Pack<T, V>& second, const float (&cos)[V],
                          const float (&sin)[V]) {
  float x[2][V];
  cuda::unpack<T, V>(first, x[0]);
  cuda::unpack<T, V>(second, x[1]);
  turn_floats<V, Interleaved>(x, cos, sin);
  first = cuda::pack<T, V>(x[0]);
  second = cuda::pack<T, V>(x[1]);
}

// One column of the heads first_head, first_head + blockDim.y, ... of a token.
template <class T, int V, bool Interleaved, int H>
GOSSAMER_INLINE void turn_column(const Rope& work, int64_t token, int64_t position, int64_t first_head,
                                 int64_t column) {
  const Columns<V, Interleaved> at{work.pairs};
  const T* x = static_cast<const T*>(work.x) + token * work.token_stride;
  T* out = static_cast<T*>(work.out) + token * work.out_token_stride;
  cuda::Pack<T, V> packs[H][2];
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const int64_t head = first_head + h * blockDim.y;
    if (head < work.heads) {
      packs[h][0] = load_channels<T, V>(work, x + head * work.head_stride, at.first(column));
      packs[h][1] = load_channels<T, V>(work, x + head * work.head_stride, at.second(column));
    }
  }
  float cos[V], sin[V];
  load_angles<V>(work, work.cos, position, column, cos);
  load_angles<V>(work, work.sin, position, column, sin);
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const int64_t head = first_head + h * blockDim.y;
    if (head < work.heads) {
      turn<T, V, Interleaved>(packs[h][0], packs[h][1], cos, sin);
      store_channels<T, V>(work, out + head * work.out_head_stride, at.first(column), packs[h][0]);
      store_channels<T, V>(work, out + head * work.out_head_stride, at.second(column), packs[h][1]);
    }
  }
}

// The same for channels that are not turned, from `channel` on.
template <class T, int V, int H>
GOSSAMER_INLINE void copy_column(const Rope& work, int64_t token, int64_t position, int64_t first_head,
                                 int64_t channel) {
  float nan[V];
#pragma unroll
  for (int i = 0; i < V; ++i) nan[i] = nanf("");
  const bool valid = position >= 0 && position < work.max_positions;
  if (valid && work.in_place) return;
  const T* x = static_cast<const T*>(work.x) + token * work.token_stride;
  T* out = static_cast<T*>(work.out) + token * work.out_token_stride;
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const int64_t head = first_head + h * blockDim.y;
    if (head >= work.heads) return;
    const T* row = x + head * work.head_stride;
    store_channels<T, V>(work, out + head * work.out_head_stride, channel,
                         valid ? load_channels<T, V>(work, row, channel) : cuda::pack<T, V>(nan));
  }
}

// blockDim.x threads along the columns of a head, blockDim.y along heads, blockDim.z along tokens.
template <class T, int V, bool Interleaved, int H>
__global__ void __launch_bounds__(kRopeThreads) rope_kernel(const Rope work) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  if (token >= work.tokens) return;
  const int64_t position = work.positions[token * work.position_stride];
  const int64_t turned = work.pairs / V, columns = work.head_dim / V - turned;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y * H;
  for (int64_t group = static_cast<int64_t>(blockIdx.y) * blockDim.y * H; group < work.heads; group += step) {
    for (int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
      if (column < turned) {
        turn_column<T, V, Interleaved, H>(work, token, position, group + threadIdx.y, column);
      } else {
        copy_column<T, V, H>(work, token, position, group + threadIdx.y, column * V + work.pairs);
      }
    }
  }
}

template <class T, int V, int H>
void launch(const Rope& work, cudaStream_t stream) {
  const auto at_most = [](int64_t n, int64_t limit) { return static_cast<unsigned>(n < limit ? n : limit); };
  const int64_t columns = (work.head_dim - work.pairs) / V;
  const int64_t groups = (work.heads - 1) / H + 1;
  dim3 block;
  block.x = at_most(columns, kRopeThreads);
  block.y = at_most(groups, kRopeThreads / block.x);
  block.z = at_most(work.tokens, at_most(kRopeThreads / (block.x * block.y), 64));
  const int64_t token_blocks = (work.tokens - 1) / block.z + 1, head_blocks = (groups - 1) / block.y + 1;
  STD_TORCH_CHECK(token_blocks < (int64_t{1} << 31), "rope: too many tokens: ", work.tokens);
  const dim3 grid(static_cast<unsigned>(token_blocks), at_most(head_blocks, 65535));
  auto* kernel = work.interleaved ? rope_kernel<T, V, true, H> : rope_kernel<T, V, false, H>;
  kernel<<<grid, block, 0, stream>>>(work);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

template <class T, int V>
void launch(const Rope& work, cudaStream_t stream) {
  if (work.tokens * work.heads * ((work.head_dim - work.pairs) / V) <= kFewColumns) {
    launch<T, V, 1>(work, stream);
  } else {
    launch<T, V, kHeadsPerThread>(work, stream);
  }
}

void turn(const RopeCall& call) {
  if (call.x.numel() == 0) return;
  const cuda::DeviceGuard guard(call.x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(call.x);
  cuda::for_dtype(call.work.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int length = cuda::vector_length<T>;
    if (can_pack(call.work, length)) {
      launch<T, length>(call.work, stream);
    } else {
      launch<T, 1>(call.work, stream);
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
