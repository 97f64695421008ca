#include <climits>

#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/launch.h"
#include "rope/rope.cuh"
#include "rope/rope.h"

namespace gossamer {
namespace {

// Up to this many elements, threads take half as many channels in 16 bits: one token takes 4.0 us on an H200, not 4.2.
constexpr int64_t kFewElements = 1 << 19;

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
