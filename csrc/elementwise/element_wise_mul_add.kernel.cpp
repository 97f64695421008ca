#include "element_wise_mul_add.kernel.h"

#include "gossamer/cpu/elementwise.h"

namespace gossamer {
namespace GOSSAMER_ISA {

void element_wise_mul_add(const MulAdd& work, int64_t begin, int64_t end) {
  const auto mul_add = [](const F32(&in)[3], auto) { return in[0] * in[1] + in[2]; };
  elementwise<3>(work.dtype, work.shape, work.in, work.out, begin, end, mul_add);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
