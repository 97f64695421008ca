// Dense rows of codes (gossamer/ops/kv_profile.py) in the order in which a CPU reads them.
//
// A plane is what one shift and one mask take out of 16 bytes of a token, 8 cells: a field of each of up to 16 channels.
// Its lanes are those 16 bytes: column k / 2, the lower or the upper byte of the cell. Queries are put into the order of
// lanes, and sums of values back into that of channels, once for many blocks. A code of 3 bits is in two lanes, which
// count 1 and 4 times.
#pragma once

#include "kv/kv_format.h"

namespace gossamer {

constexpr int kPlaneLanes = 16;
constexpr int kMaxPlanes = 48;  // 32 groups of 3 bits: 16 of two and 16 of one, and some more where fields are mixed
constexpr int kMaxLanes = kMaxPlanes * kPlaneLanes;

struct alignas(16) CodePlane {
  uint16_t mask[8], center[8];  // of each cell: what is left after the shift, and what is subtracted from its bytes
  uint64_t shift;
  int16_t chunk_at;               // bytes from the start of the values
  int8_t low_scale, high_scale;   // which 32 channels the lower and upper bytes belong to
};

struct CodePlanes {
  int count, whole;  // planes, and how many of them are not in a chunk with cells of one byte
  bool bytes;        // all codes have 8 bits
  CodePlane planes[kMaxPlanes];
  int16_t channel[kMaxLanes];   // -1: none
  float factor[kMaxLanes];      // 1, 4 or, where there is no channel, 0
  float rest[kMaxHeadDim + 16];  // code less `center` and value differ by this (before scales)

  int lanes() const { return count * kPlaneLanes; }
};

// Of a format that has codes.
void set_code_planes(const KvFormat& format, CodePlanes& planes);

}  // namespace gossamer
