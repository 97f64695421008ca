#include "gossamer/cuda/dtype.cuh"
#include "gossamer/cuda/launch.h"
#include "gossamer/cuda/vector.cuh"
#include "kv/codec.cuh"
#include "kv/kv_unpack.h"

namespace gossamer {
namespace {

constexpr int kThreads = 256;

// Stored entry i of a token, before its scale.
GOSSAMER_INLINE float entry(const KvFormat& f, const uint8_t* block, int token, int i) {
  const uint8_t* chunk = block + f.values_at + (i / kChunk * kBlockTokens + token) * f.bits;
  const int k = i % kChunk;
  if (f.values == Values::f32) return reinterpret_cast<const float*>(chunk)[k];
  if (f.values == Values::f16) return __half2float(reinterpret_cast<const __half*>(chunk)[k]);
  if (f.values == Values::bf16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(chunk)[k]);
  if (f.values == Values::fp8) return cuda::fp8_value(chunk[k]);
  uint32_t window = chunk[k * f.bits / 8];
  if (f.bits == 3 && k * f.bits % 8 > 5) window |= chunk[k * f.bits / 8 + 1] << 8;
  const int code = window >> (k * f.bits % 8) & ((1u << f.bits) - 1);
  const int sign = f.scales == Scales::row ? 1 << (f.bits - 1) : 0;
  return static_cast<float>((code ^ sign) - sign);
}

GOSSAMER_INLINE float scaled(const KvFormat& f, const uint8_t* block, int token, int c, float x) {
  if (f.scales == Scales::none) return x;
  const __half* scales = reinterpret_cast<const __half*>(block + f.scales_at);
  if (f.scales == Scales::row) return x * __half2float(scales[token]);
  const int at = f.scales == Scales::channel ? c : c / kGroup * kBlockTokens + token;
  return x * __half2float(scales[2 * at]) + __half2float(scales[2 * at + 1]);  // the product is exact
}

// One thread per 8 channels of a row of one head.
template <class T>
__global__ void __launch_bounds__(kThreads) kv_unpack_kernel(const KvUnpack w) {
  const KvFormat& f = w.format;
  const int parts = f.head_dim / kChunk;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= w.rows * w.heads * parts) return;
  const int part = static_cast<int>(index % parts);
  const int head = static_cast<int>(index / parts % w.heads);
  const int64_t slot = w.slots[index / parts / w.heads];
  float x[kChunk] = {};
  if (slot >= 0 && slot < w.num_blocks * kBlockTokens) {
    const uint8_t* block = w.blocks + slot / kBlockTokens * w.block_stride + head * w.block_head_stride;
    const int token = static_cast<int>(slot % kBlockTokens);
    int next = part * kChunk;
    uint32_t bits = 0xff;
    if (f.sparse) {
      const uint8_t* bitmap = block + token * parts;
      bits = bitmap[part];
      next = 0;
      for (int b = 0; b < part; ++b) next += __popc(bitmap[b]);
    }
#pragma unroll
    for (int k = 0; k < kChunk; ++k) {
      if (!(bits >> k & 1)) continue;
      // A slot that nobody wrote may have any bits: stay inside all the same.
      const int i = min(next++, f.chunks * kChunk - 1);
      x[k] = scaled(f, block, token, part * kChunk + k, entry(f, block, token, i));
    }
  }
  T* out = static_cast<T*>(w.out) + index * kChunk;
  constexpr int length = cuda::vector_length<T>;
#pragma unroll
  for (int k = 0; k < kChunk; k += length) {
    float part_x[length];
#pragma unroll
    for (int i = 0; i < length; ++i) part_x[i] = x[k + i];
    cuda::store<T, length>(out + k, cuda::pack<T, length>(part_x));
  }
}

}  // namespace

Tensor kv_unpack_cuda(const Tensor& blocks, const Tensor& slots, int64_t head_dim, std::optional<int64_t> keep,
                      const std::string& values, const std::string& scales, ScalarType dtype) {
  const KvUnpackCall call = prepare_kv_unpack(blocks, slots, head_dim, keep, values, scales, dtype);
  const KvUnpack& w = call.work;
  const int64_t count = w.rows * w.heads * (w.format.head_dim / kChunk);
  if (count == 0) return call.out;
  const int64_t grid = (count + kThreads - 1) / kThreads;
  STD_TORCH_CHECK(grid < (int64_t{1} << 31), "kv_unpack: too many rows: ", w.rows);
  const cuda::DeviceGuard guard(blocks.get_device_index());
  const cudaStream_t stream = cuda::current_stream(blocks);
  cuda::for_dtype(call.dtype, [&](auto element) {
    kv_unpack_kernel<decltype(element)><<<static_cast<unsigned>(grid), kThreads, 0, stream>>>(w);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return call.out;
}

}  // namespace gossamer
