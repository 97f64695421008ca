// How the CTAs that have a part of the same result find out which of them is the last.
#pragma once

#include <atomic>
#include <random>

#include "gossamer/common.h"

namespace gossamer::cuda {

// Counts the CTAs that have written their part of an item down, in a word of memory that nobody has cleared: its upper
// 48 bits are the launch's ticket, or else it is of no meaning (what was there before is the ticket with a probability
// of 2^-48). The last CTA leaves zero, so that a captured graph, which has its ticket for good, can count again.
struct Arrivals {
  uint64_t* word;

  // Before the CTA's work, by one of its threads, while its first block is on its way.
  __device__ __forceinline__ void open(uint64_t ticket) const {
    const auto counter = reinterpret_cast<unsigned long long*>(word);
    const unsigned long long before = __ldcg(counter);
    if ((before ^ ticket) >> 16 != 0) atomicCAS(counter, before, static_cast<unsigned long long>(ticket));
  }
  // After it, by one thread; whether this was the last of `count`. The last CTA sees what the others wrote before their
  // barriers.
  __device__ __forceinline__ bool arrive(int count) const {
    unsigned long long before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], 1;" : "=l"(before) : "l"(word) : "memory");
    const bool last = (before & 0xffff) + 1 == count;
    if (last) *word = 0;
    return last;
  }
};

// A number that no other launch has, in the upper 48 bits; the host's part of Arrivals.
inline uint64_t next_ticket() {
  static std::atomic<uint64_t> launches{static_cast<uint64_t>(std::random_device{}()) << 32 | std::random_device{}()};
  uint64_t x = launches.fetch_add(1, std::memory_order_relaxed);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;  // mixed, or else neighbours would look like counters of each other
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return (x ^ x >> 31) << 16 | uint64_t{1} << 63;
}

}  // namespace gossamer::cuda
