// Blocks from global to shared memory, a warp at a time, while the warp does something else.
#pragma once

#include "attention/shared/mma.cuh"

namespace gossamer::cuda {

// A place for one block in shared memory that belongs to one warp. On sm_90 one lane asks TMA for the
// whole block; before that every lane copies its 16-byte pieces.
struct Stage {
  uint32_t data;     // addresses in shared memory
  uint32_t barrier;  // 8 bytes; unused before sm_90

  __device__ __forceinline__ void init(int lane) const {
#if __CUDA_ARCH__ >= 900
    if (lane == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
#endif
  }

  // `bytes` is a multiple of 16. The warp must have finished reading what was there, and synchronized.
  __device__ __forceinline__ void fetch(const uint8_t* from, int bytes) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred chosen;\n\t"
        "elect.sync _|chosen, 0xffffffff;\n\t"
        "@chosen mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n\t"
        "@chosen cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n}" ::"r"(
            data),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
#else
    for (int at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(data + at), "l"(from + at) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }

  // The same for a block here and one in `other`, of which this stage's barrier tells.
  __device__ __forceinline__ void fetch_both(const uint8_t* from, int bytes, const Stage& other,
                                             const uint8_t* other_from, int other_bytes) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred chosen;\n\t"
        "elect.sync _|chosen, 0xffffffff;\n\t"
        "@chosen mbarrier.arrive.expect_tx.shared::cta.b64 _, [%6], %7;\n\t"
        "@chosen cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%6];\n\t"
        "@chosen cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%3], [%4], %5, [%6];\n}" ::"r"(
            data),
        "l"(from), "r"(bytes), "r"(other.data), "l"(other_from), "r"(other_bytes), "r"(barrier),
        "r"(bytes + other_bytes)
        : "memory");
#else
    fetch(from, bytes);
    other.fetch(other_from, other_bytes);
#endif
  }

  // Waits for the last fetch. `phase`: the number of fetches before it, modulo 2. `younger`: whether the warp's other
  // stage was fetched since.
  __device__ __forceinline__ void wait(int phase, bool younger) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra again;\n}" ::"r"(barrier),
        "r"(phase)
        : "memory");
#else
    if (younger) {
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncwarp();
#endif
  }
};

}  // namespace gossamer::cuda
