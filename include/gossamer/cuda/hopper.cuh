// What sm_90 has for large tiles: barriers that count bytes, TMA and clusters of CTAs.
#pragma once

#include <cuda.h>

#include "gossamer/common.h"

namespace gossamer::cuda::hopper {

#if __CUDA_ARCH__ >= 900

GOSSAMER_INLINE uint32_t shared_offset(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

GOSSAMER_INLINE void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes the barriers of this thread known to TMA and to the other CTAs of the cluster.
GOSSAMER_INLINE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
GOSSAMER_INLINE void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// At the same barrier in CTA `rank` of the cluster. Without `.cluster` scopes here and in barrier_wait, which would
// drain all stores of the SM and empty its L1 at every step (1.8 times the time of a GEMM): what barriers order is
// reads by wgmma and writes by TMA, which neither stores nor the L1 take part in.
GOSSAMER_INLINE void barrier_arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{\n\t.reg .b32 there;\n\t"
      "mapa.shared::cluster.u32 there, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Until the phase of this parity is over. It must be the present one or the one before: parities say no more.
GOSSAMER_INLINE void barrier_wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

GOSSAMER_INLINE void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}
GOSSAMER_INLINE void load_box(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// To the same place in every CTA of `mask`, each of which counts the bytes at its own barrier.
GOSSAMER_INLINE void load_box_to(uint16_t mask, uint32_t to, const CUtensorMap& map, int column, int row,
                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier), "h"(mask)
      : "memory");
}
GOSSAMER_INLINE void store_box(const CUtensorMap& map, int column, int row, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                   reinterpret_cast<uint64_t>(&map)),
               "r"(column), "r"(row), "r"(from)
               : "memory");
}
// Closes a group of this thread's stores, which may be empty.
GOSSAMER_INLINE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most `Pending` groups of this thread's stores still read shared memory.
template <int Pending>
GOSSAMER_INLINE void wait_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
GOSSAMER_INLINE void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Before a barrier, in each thread that wrote shared memory which TMA reads next.
GOSSAMER_INLINE void fence_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

GOSSAMER_INLINE int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
GOSSAMER_INLINE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Of 128 threads; `id` from 1 to 15.
GOSSAMER_INLINE void warpgroup_sync(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }
// One warpgroup waits for another one, which does not wait.
GOSSAMER_INLINE void await_warpgroup(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
GOSSAMER_INLINE void tell_warpgroup(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

// A place in a ring of stages in shared memory: each has a barrier that tells when it is full, and one for empty.
template <class Traits>
struct RingPlace {
  int stage = 0, parity = 0;
  uint32_t shared;

  __device__ __forceinline__ explicit RingPlace(uint32_t shared) : shared(shared) {}
  __device__ __forceinline__ uint32_t full() const { return shared + Traits::kBarriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8 * Traits::kStages; }
  __device__ __forceinline__ uint32_t data() const { return shared + stage * Traits::kStageBytes; }
  __device__ __forceinline__ void next() {
    if (++stage == Traits::kStages) stage = 0, parity ^= 1;
  }
};

#endif

}  // namespace gossamer::cuda::hopper
