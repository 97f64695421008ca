// The activations that products end with. Names as in gossamer/ops/activations.py.
#pragma once

namespace gossamer {

enum class Activation { none, gelu, gelu_tanh, silu, mish, relu2, relu };

}  // namespace gossamer
