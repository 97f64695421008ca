#include <climits>

#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/vector.cuh"
#include "rope/rope.h"

namespace gossamer {
namespace {

constexpr int kRopeThreads = 256;
// Heads that a thread turns by the same cos and sin. One step of decoding waits for the code of a kernel, too, so that
// four heads are slower there, and one is slower for prompts: 40 heads of 1 and of 16,384 tokens in bfloat16 take 4.1
// and 89.6 us with one head, 4.2 and 83.3 with two, 4.2 and 85.3 with four on an H200.
constexpr int kHeadsPerThread = 2;
// Up to this many elements, threads take half as many channels in 16 bits: 4.0 us for one token.
constexpr int64_t kFewElements = 1 << 19;

template <class T>
struct RopeArgs {
  const T* x;
  T* out;  // may be x
  const int64_t* positions;
  const float *cos, *sin;
  int64_t token_stride, head_stride, out_token_stride, out_head_stride, position_stride, tokens, max_positions;
  int heads, head_dim, pairs;
  int64_t channel_stride, out_channel_stride;  // for V = 1; else 1
};

// V pairs of channels of a head: two packs, halves of the head apart; or one, where pairs lie side by side.
template <class T, int V>
struct alignas(sizeof(T) * V * 2 < cuda::kVectorBytes ? sizeof(T) * V * 2 : cuda::kVectorBytes) Pairs {
  cuda::Pack<T, V> pack[2];
};

template <int V, bool Interleaved>
struct Columns {
  int pairs;

  __device__ int first(int column) const { return (Interleaved ? 2 : 1) * column * V; }
  __device__ int second(int column) const { return first(column) + (Interleaved ? V : pairs); }
};

template <class T, int V, bool Interleaved>
GOSSAMER_INLINE Pairs<T, V> load_pairs(const T* head, Columns<V, Interleaved> at, int column, int64_t stride) {
  Pairs<T, V> x;
  if constexpr (Interleaved && V > 1) {
    reinterpret_cast<cuda::Pack<T, 2 * V>&>(x) = cuda::load<T, 2 * V>(head + at.first(column));
  } else {
    if constexpr (V > 1) stride = 1;
    x.pack[0] = cuda::load<T, V>(head + at.first(column) * stride);
    x.pack[1] = cuda::load<T, V>(head + at.second(column) * stride);
  }
  return x;
}

template <class T, int V, bool Interleaved>
GOSSAMER_INLINE void store_pairs(T* head, Columns<V, Interleaved> at, int column, int64_t stride,
                                 const Pairs<T, V>& x) {
  if constexpr (Interleaved && V > 1) {
    cuda::store<T, 2 * V>(head + at.first(column), reinterpret_cast<const cuda::Pack<T, 2 * V>&>(x));
  } else {
    if constexpr (V > 1) stride = 1;
    cuda::store<T, V>(head + at.first(column) * stride, x.pack[0]);
    cuda::store<T, V>(head + at.second(column) * stride, x.pack[1]);
  }
}

// The same bits from every kernel: left alone, the compiler chooses which of two products an FMA leaves unrounded.
template <class T, int V, bool Interleaved>
GOSSAMER_INLINE void turn(Pairs<T, V>& pairs, const float (&cos)[V], const float (&sin)[V]) {
  float x[2][V], y[2][V];
  cuda::unpack<T, V>(pairs.pack[0], x[0]);
  cuda::unpack<T, V>(pairs.pack[1], x[1]);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int a = Interleaved ? 2 * i : i, b = Interleaved ? 2 * i + 1 : V + i;
    const float left = x[a / V][a % V], right = x[b / V][b % V];
    y[a / V][a % V] = __fmaf_rn(left, cos[i], -__fmul_rn(right, sin[i]));
    y[b / V][b % V] = __fmaf_rn(right, cos[i], __fmul_rn(left, sin[i]));
  }
  pairs.pack[0] = cuda::pack<T, V>(y[0]);
  pairs.pack[1] = cuda::pack<T, V>(y[1]);
}

// One column of the heads head, head + blockDim.y, ... of a token, which x and out point to.
template <class T, int V, bool Interleaved>
GOSSAMER_INLINE void turn_column(const RopeArgs<T>& args, const T* x, T* out, const int64_t* position_of, int head,
                                 int column) {
  const Columns<V, Interleaved> at{args.pairs};
  Pairs<T, V> pairs[kHeadsPerThread];
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int further = h * blockDim.y;
    if (head + further < args.heads) {
      pairs[h] = load_pairs<T, V, Interleaved>(x + further * args.head_stride, at, column, args.channel_stride);
    }
  }
  const int64_t position = *position_of;  // asked for after x, or the compiler lets x wait for cos and sin
  float cos[V], sin[V];
#pragma unroll
  for (int i = 0; i < V; ++i) cos[i] = sin[i] = nanf("");  // what a position out of range makes of a row
  if (position >= 0 && position < args.max_positions) {
    cuda::load_floats<float, V>(args.cos + position * args.pairs + column * V, cos);
    cuda::load_floats<float, V>(args.sin + position * args.pairs + column * V, sin);
  }
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int further = h * blockDim.y;
    if (head + further < args.heads) {
      turn<T, V, Interleaved>(pairs[h], cos, sin);
      store_pairs<T, V, Interleaved>(out + further * args.out_head_stride, at, column, args.out_channel_stride,
                                     pairs[h]);
    }
  }
}

// The same for V channels that are not turned, from `channel` on.
template <class T, int V>
GOSSAMER_INLINE void copy_column(const RopeArgs<T>& args, const T* x, T* out, const int64_t* position_of, int head,
                                 int channel) {
  const int64_t position = *position_of;
  const bool valid = position >= 0 && position < args.max_positions;
  if (valid && out == x) return;
  const int64_t from = channel * (V == 1 ? args.channel_stride : 1),
                to = channel * (V == 1 ? args.out_channel_stride : 1);
  float nan[V];
#pragma unroll
  for (int i = 0; i < V; ++i) nan[i] = nanf("");
#pragma unroll
  for (int h = 0; h < kHeadsPerThread; ++h) {
    const int further = h * blockDim.y;
    if (head + further >= args.heads) return;
    const cuda::Pack<T, V> same =
        valid ? cuda::load<T, V>(x + further * args.head_stride + from) : cuda::pack<T, V>(nan);
    cuda::store<T, V>(out + further * args.out_head_stride + to, same);
  }
}

// blockDim.x threads along the columns of a head: V pairs of channels each, and then V channels to copy; blockDim.y
// along heads, blockDim.z along tokens. V = 1 takes any strides.
template <class T, int V, bool Interleaved>
__global__ void __launch_bounds__(kRopeThreads) rope_kernel(const RopeArgs<T> args) {
  const int64_t token = (static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * blockDim.z + threadIdx.z;
  if (token >= args.tokens) return;
  const int64_t* position = args.positions + token * args.position_stride;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(position));  // cos and sin wait for it, and it for 100 instructions
  const int head = blockIdx.x * (blockDim.y * kHeadsPerThread) + threadIdx.y;
  if (head >= args.heads) return;
  const T* x = args.x + token * args.token_stride + head * args.head_stride;
  T* out = args.out + token * args.out_token_stride + head * args.out_head_stride;
  const int turned = args.pairs / V, columns = args.head_dim / V - turned;
  for (int column = threadIdx.x; column < columns; column += blockDim.x) {
    if (column < turned) {
      turn_column<T, V, Interleaved>(args, x, out, position, head, column);
    } else {
      copy_column<T, V>(args, x, out, position, head, column * V + args.pairs);
    }
  }
}

template <class T, int V, bool Interleaved>
void launch(const RopeArgs<T>& args, cudaStream_t stream) {
  const auto at_most = [](int64_t n, int64_t limit) { return static_cast<unsigned>(n < limit ? n : limit); };
  const auto parts = [](int64_t n, int64_t each) { return (n - 1) / each + 1; };
  const int64_t groups = parts(args.heads, kHeadsPerThread);
  dim3 block, grid;
  block.x = at_most((args.head_dim - args.pairs) / V, kRopeThreads);
  grid.x = static_cast<unsigned>(parts(groups, kRopeThreads / block.x));
  block.y = static_cast<unsigned>(parts(groups, grid.x));  // as many heads to each block
  block.z = at_most(args.tokens, at_most(kRopeThreads / (block.x * block.y), 64));
  const int64_t token_blocks = parts(args.tokens, block.z);
  STD_TORCH_CHECK(token_blocks < (int64_t{1} << 31), "rope: too many tokens: ", args.tokens);
  grid.z = static_cast<unsigned>(parts(token_blocks, 65535));
  grid.y = static_cast<unsigned>(parts(token_blocks, grid.z));
  rope_kernel<T, V, Interleaved><<<grid, block, 0, stream>>>(args);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// Whether V pairs, and V of the channels that are copied, begin at multiples of a pack in x, in the result, in cos and
// in sin. Packs are `length` channels.
bool can_pack(const RopeRows& work, int length) {
  const int64_t turned = work.interleaved ? 2 * work.pairs : work.pairs;
  return turned % length == 0 && work.head_dim % length == 0 && work.channel_stride == 1 &&
         work.token_stride % length == 0 && work.head_stride % length == 0 &&
         cuda::aligned(work.x, cuda::kVectorBytes) && cuda::aligned(work.cos, cuda::kVectorBytes) &&
         cuda::aligned(work.sin, cuda::kVectorBytes);
}

template <class T>
RopeArgs<T> args_of(const RopeRows& work) {
  RopeArgs<T> args;
  args.x = static_cast<const T*>(work.x);
  args.out = static_cast<T*>(work.out);
  args.positions = work.positions;
  args.cos = work.cos;
  args.sin = work.sin;
  args.token_stride = work.token_stride;
  args.head_stride = work.head_stride;
  args.out_token_stride = work.out_token_stride;
  args.out_head_stride = work.out_head_stride;
  args.position_stride = work.position_stride;
  args.tokens = work.tokens;
  args.max_positions = work.max_positions;
  args.heads = static_cast<int>(work.heads);
  args.head_dim = static_cast<int>(work.head_dim);
  args.pairs = static_cast<int>(work.pairs);
  args.channel_stride = work.channel_stride;
  args.out_channel_stride = work.in_place ? work.channel_stride : 1;
  return args;
}

void turn(const char* op, const RopeCall& call) {
  const RopeRows& work = call.work;
  if (call.x.numel() == 0) return;
  STD_TORCH_CHECK(work.heads <= INT_MAX && work.head_dim <= INT_MAX, op, ": more than 2^31 - 1 heads or channels");
  const cuda::DeviceGuard guard(call.x.get_device_index());
  const cudaStream_t stream = cuda::current_stream(call.x);
  cuda::for_dtype(work.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int length = cuda::vector_length<T>, half = length / 2;
    const RopeArgs<T> args = args_of<T>(work);
    const bool packs = can_pack(work, length), few = call.x.numel() <= kFewElements;
    if (work.interleaved) {
      packs ? launch<T, half, true>(args, stream) : launch<T, 1, true>(args, stream);
    } else if (packs && few) {
      launch<T, sizeof(T) == 2 ? half : length, false>(args, stream);
    } else {
      packs ? launch<T, length, false>(args, stream) : launch<T, 1, false>(args, stream);
    }
  });
}

}  // namespace

Tensor rope_cuda(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin, bool interleaved) {
  RopeCall call = prepare_rope("rope", x, positions, cos, sin, interleaved);
  write_to(call, empty_contiguous(x, x.sizes()));
  turn("rope", call);
  return call.out;
}

// A thread reads both channels of a pair before it writes them, and no other thread reads them.
void rope_inplace_cuda(const Tensor& x, const Tensor& positions, const Tensor& cos, const Tensor& sin,
                       bool interleaved) {
  RopeCall call = prepare_rope("rope_inplace", x, positions, cos, sin, interleaved);
  check_apart("rope_inplace", x);
  call.work.in_place = true;
  write_to(call, x);
  turn("rope_inplace", call);
}

}  // namespace gossamer
