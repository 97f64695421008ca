"""Activation functions for Triton kernels, by the names of gossamer.ops.activations."""

import triton
import triton.language as tl


@triton.jit
def gelu_erf(x):
    """x * Phi(x), with the fit of include/gossamer/math/gelu.h: erf is slower and has no tail."""
    t = 1.0 / (1.0 + 0.3 * tl.abs(x))
    r = t * 0.0356753224 - 0.157205313
    r = r * t + 0.206357261
    r = r * t - 0.0536870241
    r = r * t + 0.128563377
    r = r * t + 0.0999129722
    r = r * t + 0.120754038
    r = (r * t + 0.119629294) * t
    tail = tl.exp(-0.5 * (x * x)) * r
    return x * tl.where(x < 0, tail, 1.0 - tail)


@triton.jit
def gelu_tanh(x):
    # 0.5 (1 + tanh u) = sigmoid(2u), with u = sqrt(2/pi) (x + 0.044715 x^3)
    return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def mish(x):
    # tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); above 20 that is 1 in float32
    e = tl.exp(tl.where(x < 20.0, x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)  # NaN stays NaN


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation of x in float32; "swish" goes by its other name, "silu"."""
    if ACTIVATION == "gelu":
        y = gelu_erf(x)
    elif ACTIVATION == "gelu_tanh":
        y = gelu_tanh(x)
    elif ACTIVATION == "silu":
        y = silu(x)
    elif ACTIVATION == "mish":
        y = mish(x)
    elif ACTIVATION == "relu2":
        y = relu(x) * relu(x)
    else:
        tl.static_assert(ACTIVATION == "relu")
        y = relu(x)
    return y
