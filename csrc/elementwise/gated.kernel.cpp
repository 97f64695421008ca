#include "gated.kernel.h"

#include "gossamer/cpu/activation.h"
#include "gossamer/cpu/elementwise.h"

namespace gossamer {
namespace {

template <Activation A>
void gated_by(const Gated& work, int64_t begin, int64_t end) {
  const auto f = [](const F32(&in)[2], auto element) { return activate<A>(in[0], element) * in[1]; };
  elementwise<2>(work.dtype, work.shape, work.in, work.out, begin, end, f);
}

}  // namespace

namespace GOSSAMER_ISA {

void gated(const Gated& work, int64_t begin, int64_t end) {
  switch (work.activation) {
    case Activation::gelu:
      return gated_by<Activation::gelu>(work, begin, end);
    case Activation::gelu_tanh:
      return gated_by<Activation::gelu_tanh>(work, begin, end);
    default:
      return gated_by<Activation::silu>(work, begin, end);
  }
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
