#pragma once

#include <cstdint>

namespace gossamer::cuda {

// Division of 0 <= n < 2^31 by a fixed divisor, as a multiplication (Granlund and Montgomery, 1994):
// 2 instructions instead of about 20.
struct Divider {
  uint32_t magic = 1, shift = 0;

  Divider() = default;
  explicit Divider(uint32_t divisor) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }
  __device__ __forceinline__ uint32_t divide(uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
};

}  // namespace gossamer::cuda
