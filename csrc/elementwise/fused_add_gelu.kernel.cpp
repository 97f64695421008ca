#include "fused_add_gelu.kernel.h"

#include "gossamer/cpu/elementwise.h"
#include "gossamer/math/gelu.h"

namespace gossamer {
namespace GOSSAMER_ISA {

void fused_add_gelu(const AddGelu& work, int64_t begin, int64_t end) {
  const auto erf = [](const F32(&in)[2], auto element) {
    if constexpr (sizeof(element) == 2) {
      return math::gelu_erf<VecMath16, math::TailFit6>(in[0] + in[1]);
    } else {
      return math::gelu_erf<VecMath, math::TailFit8>(in[0] + in[1]);
    }
  };
  const auto tanh = [](const F32(&in)[2], auto) { return math::gelu_tanh<VecMath>(in[0] + in[1]); };
  if (work.tanh) {
    elementwise<2>(work.dtype, work.shape, work.in, work.out, begin, end, tanh);
  } else {
    elementwise<2>(work.dtype, work.shape, work.in, work.out, begin, end, erf);
  }
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
