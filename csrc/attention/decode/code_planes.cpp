#include "attention/decode/code_planes.h"

#include <algorithm>

namespace gossamer {
namespace {

// A field of the 8 channels of a group.
struct Field {
  int group, at, width, factor, center;
};

// By place in the line. Bytes less their center have a sign: 8 bits then fit, and sums of values stay small.
int fields_of(const KvFormat& f, Field (&fields)[2 * kMaxGroups]) {
  int count = 0;
  for (int g = 0; g < f.head_dim / kChunk; ++g) {
    const int bits = f.group_bits[g];
    if (bits == 0) continue;
    const int center = bits == 3 || f.values == Values::fp8 ? 0 : 1 << (bits - 1);
    fields[count++] = {g, f.group_at[g], bits == 3 ? 2 : bits, 1, center};
    if (bits == 3) fields[count++] = {g, f.group_third[g], 1, 4, 1};
  }
  std::sort(fields, fields + count, [](const Field& a, const Field& b) { return a.at < b.at; });
  return count;
}

// Plane of the cells at `chunk_at` after this shift; a new one if there is none yet.
int plane_at(CodePlanes& p, int chunk_at, int shift) {
  for (int i = 0; i < p.count; ++i) {
    if (p.planes[i].chunk_at == chunk_at && p.planes[i].shift == static_cast<uint64_t>(shift)) return i;
  }
  CodePlane& plane = p.planes[p.count];
  plane = {};
  plane.chunk_at = static_cast<int16_t>(chunk_at);
  plane.shift = shift;
  std::fill_n(p.channel + p.count * kPlaneLanes, kPlaneLanes, int16_t{-1});
  std::fill_n(p.factor + p.count * kPlaneLanes, kPlaneLanes, 0.0f);
  return p.count++;
}

void place(const Field& field, CodePlanes& p) {
  const int byte = field.at / 8 % 2;
  const int i = plane_at(p, field.at / 16 * kCodeChunk, field.at % 8);
  CodePlane& plane = p.planes[i];
  (byte ? plane.high_scale : plane.low_scale) = static_cast<int8_t>(field.group * kChunk / kGroup);
  for (int column = 0; column < kChunk; ++column) {
    plane.mask[column] |= static_cast<uint16_t>(((1 << field.width) - 1) << 8 * byte);
    plane.center[column] |= static_cast<uint16_t>(field.center << 8 * byte);
    const int lane = i * kPlaneLanes + 2 * column + byte;
    p.channel[lane] = static_cast<int16_t>(field.group * kChunk + column);
    p.factor[lane] = static_cast<float>(field.factor);
  }
}

// Of the codes of a group of b bits, less their center, to what kv_codec.py takes them for.
float rest_of(const KvFormat& f, int bits) {
  if (bits == 0 || f.values == Values::fp8) return 0;
  if (f.values == Values::profile) return 0.5f;
  return f.scales == Scales::row ? 0.0f : static_cast<float>(1 << (bits - 1));
}

}  // namespace

void set_code_planes(const KvFormat& f, CodePlanes& p) {
  Field fields[2 * kMaxGroups];
  const int count = fields_of(f, fields);
  p.count = p.whole = 0;
  const int halves_from = f.row_bytes / 16 * 16;  // of a line
  for (int i = 0; i < count; ++i) {
    place(fields[i], p);
    if (fields[i].at < halves_from) p.whole = p.count;
  }
  p.bytes = std::all_of(fields, fields + count, [](const Field& field) { return field.width == 8; });
  for (int c = 0; c < kMaxHeadDim + 16; ++c) p.rest[c] = c < f.head_dim ? rest_of(f, f.group_bits[c / kChunk]) : 0;
}

}  // namespace gossamer
