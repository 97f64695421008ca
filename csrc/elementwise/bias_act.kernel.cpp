#include "bias_act.kernel.h"

#include "gossamer/cpu/activation.h"
#include "gossamer/cpu/elementwise.h"

namespace gossamer {
namespace {

template <Activation A>
void with_bias(const BiasAct& work, int64_t begin, int64_t end) {
  const auto f = [](const F32(&in)[2], auto element) { return activate<A>(in[0] + in[1], element); };
  elementwise<2>(work.dtype, work.shape, work.in, work.out, begin, end, f);
}

template <Activation A>
void without_bias(const BiasAct& work, int64_t begin, int64_t end) {
  const auto f = [](const F32(&in)[1], auto element) { return activate<A>(in[0], element); };
  Strided<1> shape;
  shape.dims = work.shape.dims;
  shape.numel = work.shape.numel;
  for (int d = 0; d < 2; ++d) {
    shape.size[d] = work.shape.size[d];
    shape.stride[0][d] = work.shape.stride[0][d];
  }
  const void* const in[1] = {work.in[0]};
  elementwise<1>(work.dtype, shape, in, work.out, begin, end, f);
}

}  // namespace

namespace GOSSAMER_ISA {

void bias_act(const BiasAct& work, int64_t begin, int64_t end) {
  for_activation(work.activation, [&](auto choice) {
    if (work.has_bias) {
      with_bias<decltype(choice)::value>(work, begin, end);
    } else {
      without_bias<decltype(choice)::value>(work, begin, end);
    }
  });
}

}  // namespace GOSSAMER_ISA
}  // namespace gossamer
