// The elementwise kernel: out[i] = f(in_0[i], ..., in_N-1[i]) over broadcast inputs.
//
// Memory bound: a thread moves 16 bytes per access and has kUnroll accesses per input in flight.
#pragma once

#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/vector.cuh"
#include "gossamer/torch/broadcast.h"

namespace gossamer::cuda {

constexpr int kThreads = 256;

// Division of 0 <= n < 2^31 by a constant, as a multiplication (Granlund and Montgomery, 1994).
struct Divider {
  uint32_t divisor = 1, magic = 1, shift = 0;

  Divider() = default;
  explicit Divider(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

template <class T, int N>
struct ElementwiseArgs {
  const T* in[N];
  T* out;
  Strided<N> shape;            // dimension 0 counts packs
  Divider divider[kMaxDims];   // valid while the number of packs fits 31 bits
  int64_t last_offset[N];      // for debug builds
};

// Element offsets of pack `index` in every input.
template <bool Wide, class T, int N>
GOSSAMER_INLINE void locate(const ElementwiseArgs<T, N>& args, int64_t index, int64_t (&offset)[N]) {
  for (int k = 0; k < N; ++k) offset[k] = 0;
  int64_t rest = index;
#pragma unroll 1
  for (int d = 0; d < args.shape.dims; ++d) {
    int64_t at = rest;
    if (d + 1 < args.shape.dims) {
      const int64_t next = Wide ? rest / args.shape.size[d] : args.divider[d].divide(static_cast<uint32_t>(rest));
      at = rest - next * args.shape.size[d];
      rest = next;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) offset[k] += at * args.shape.stride[k][d];
  }
}

// V elements of input k for one pack; a broadcast inner dimension repeats one element.
template <class T, int N, int V>
GOSSAMER_INLINE Pack<T, V> load_input(const ElementwiseArgs<T, N>& args, int k, int64_t offset) {
  if (V > 1 && args.shape.stride[k][0] == 0) {
    Pack<T, V> pack;
#pragma unroll
    for (int i = 0; i < V; ++i) pack.value[i] = args.in[k][offset];
    return pack;
  }
  GOSSAMER_ASSERT(offset >= 0 && offset + V - 1 <= args.last_offset[k]);
  return load<T, V>(args.in[k] + offset);
}

template <bool Wide, int V, int kUnroll, class T, int N, class F>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(const ElementwiseArgs<T, N> args, const F f) {
  const int64_t packs = args.shape.numel;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
  Pack<T, V> in[kUnroll][N];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t index = first + u * kThreads;
    if (index >= packs) break;
    int64_t offset[N];
    locate<Wide>(args, index, offset);
#pragma unroll
    for (int k = 0; k < N; ++k) in[u][k] = load_input<T, N, V>(args, k, offset[k]);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t index = first + u * kThreads;
    if (index >= packs) break;
    Pack<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      float x[N];
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] = to_float(in[u][k].value[i]);
      out.value[i] = from_float<T>(f(x));
    }
    store<T, V>(args.out + index * V, out);
  }
}

// Whether every input can be read in packs of `length`: the inner dimension is dense or broadcast, and
// every row starts on a pack boundary.
template <class T, int N>
bool can_pack(const ElementwiseArgs<T, N>& args, int length) {
  if (args.shape.size[0] % length != 0 || args.shape.numel / length >= (int64_t{1} << 31)) return false;
  for (int k = 0; k < N; ++k) {
    const int64_t inner = args.shape.stride[k][0];
    if (inner == 0) continue;
    if (inner != 1 || !aligned(args.in[k], kVectorBytes)) return false;
    for (int d = 1; d < args.shape.dims; ++d) {
      if (args.shape.stride[k][d] % length != 0) return false;
    }
  }
  return true;
}

template <bool Wide, int V, class T, int N, class F>
void launch_packs(ElementwiseArgs<T, N> args, const F& f, cudaStream_t stream) {
  constexpr int unroll = N <= 2 ? 4 : 2;
  args.shape.size[0] /= V;
  args.shape.numel /= V;
  for (int k = 0; k < N; ++k) {
    args.last_offset[k] = args.shape.last_offset(k) + (V - 1);
    args.shape.stride[k][0] *= V;
  }
  if (!Wide) {
    for (int d = 0; d < args.shape.dims; ++d) args.divider[d] = Divider(static_cast<uint32_t>(args.shape.size[d]));
  }
  const int64_t per_block = kThreads * unroll;
  const int64_t blocks = (args.shape.numel + per_block - 1) / per_block;
  STD_TORCH_CHECK(blocks < (int64_t{1} << 31), "elementwise: too many elements for one launch: ", args.shape.numel);
  elementwise_kernel<Wide, V, unroll><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args, f);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

// The launcher: packed when layout and alignment allow it, else element by element.
template <class T, int N, class F>
void launch_elementwise(const Elementwise<N>& call, const F& f) {
  if (call.shape.numel == 0) return;
  const DeviceGuard guard(call.out.get_device_index());
  const cudaStream_t stream = current_stream(call.out);
  ElementwiseArgs<T, N> args;
  for (int k = 0; k < N; ++k) args.in[k] = static_cast<const T*>(call.in[k].const_data_ptr());
  args.out = static_cast<T*>(call.out.mutable_data_ptr());
  args.shape = call.shape;
  if (can_pack(args, vector_length<T>)) {
    launch_packs<false, vector_length<T>>(args, f, stream);
  } else {
    launch_packs<true, 1>(args, f, stream);
  }
}

// Calls `launch` with a value of the element type of `dtype`.
template <class Launch>
void for_dtype(DType dtype, const Launch& launch) {
  switch (dtype) {
    case DType::f32: return launch(float{});
    case DType::f16: return launch(__half{});
    case DType::bf16: return launch(__nv_bfloat16{});
  }
}

}  // namespace gossamer::cuda
