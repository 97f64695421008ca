"""The activation functions that ops know by name, in plain torch, and the check of such a name."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.ops.checks import one_of


def gelu(x: Tensor) -> Tensor:
    """x * Phi(x), where Phi is the normal distribution.

    Not F.gelu: on the CPU, torch 2.13 makes NaN of +inf, and 1 + erf(x) has no digits below -5.
    """
    return 0.5 * x * torch.erfc(-x / math.sqrt(2))


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of gelu."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu2(x: Tensor) -> Tensor:
    """The square of max(x, 0)."""
    return torch.relu(x).square()


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "swish": F.silu,  # another name of it
    "mish": F.mish,
    "relu2": relu2,
    "relu": torch.relu,
}


def activate(x: Tensor, activation: str) -> Tensor:
    """The activation of x, computed in x's own dtype: callers widen first."""
    return ACTIVATIONS[activation](x)


def check_activation(op: str, activation: object, valid: Iterable[str] = ACTIVATIONS) -> None:
    """One of the `valid` names; ValueError otherwise."""
    one_of(f"{op}: activation", activation, valid)
