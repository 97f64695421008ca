// The activation functions that ops know by name (gossamer/ops/activations.py); none: where an op may do without one.
#pragma once

namespace gossamer {

enum class Activation { none, gelu, gelu_tanh, silu, mish, relu2, relu };

}  // namespace gossamer
