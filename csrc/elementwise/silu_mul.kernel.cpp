#include "silu_mul.kernel.h"

#include "gossamer/cpu/elementwise.h"
#include "gossamer/math/silu.h"

namespace gossamer {
namespace GOSSAMER_ISA {

void silu_mul(const SiluMul& work, int64_t begin, int64_t end) {
  const auto f = [](const F32(&in)[2], auto) { return math::silu<VecMath>(in[0]) * in[1]; };
  elementwise<2>(work.dtype, work.shape, work.in, work.out, begin, end, f);
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
