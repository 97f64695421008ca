#include "rope.kernel.h"

#include "rope_row.kernel.h"

namespace gossamer {
namespace {

template <class T>
void rope_rows(const RopeRows& work, int64_t begin, int64_t end) {
  int64_t token = begin / work.heads, head = begin % work.heads;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(work.x) + token * work.token_stride + head * work.head_stride;
    T* out = static_cast<T*>(work.out) + token * work.out_token_stride + head * work.out_head_stride;
    turn_row(work, x, head, work.positions[token * work.position_stride], out);
    if (++head == work.heads) {
      head = 0;
      ++token;
    }
  }
}

}  // namespace

namespace GOSSAMER_ISA {

void rope(const RopeRows& work, int64_t begin, int64_t end) {
  switch (work.dtype) {
    case DType::f32:
      return rope_rows<float>(work, begin, end);
    case DType::f16:
      return rope_rows<f16_t>(work, begin, end);
    case DType::bf16:
      return rope_rows<bf16_t>(work, begin, end);
  }
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
