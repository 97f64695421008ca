"""What all layers share: when custom kernels run, and the proof that a drop-in is one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class KernelLayer(nn.Module):
    """A module with two branches that compute the same: Gossamer's operators and plain torch."""

    def __init__(self, use_custom_kernels: bool) -> None:
        super().__init__()
        self.use_custom_kernels = use_custom_kernels

    def uses_kernels(self, *inputs: Tensor | None) -> bool:
        """Whether a call with these inputs takes the operators: not where a gradient is needed."""
        if not self.use_custom_kernels:
            return False
        if not torch.is_grad_enabled():
            return True
        tensors = (*inputs, *self.parameters())
        return not any(t is not None and t.requires_grad for t in tensors)


def positive(name: str, value: int) -> int:
    """The value, if it is an integer of at least 1; ValueError otherwise."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; must be an integer of at least 1")
    return value


@torch.no_grad()
def check_same(theirs: nn.Module, ours: Callable[..., Any], width: int, like: Tensor) -> None:
    """ValueError if `ours` and `theirs` differ on random rows of `width` numbers.

    Modules of the same shape may mean something else (a norm that multiplies by 1 + weight).
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, width, generator=generator).to(like.device, like.dtype)
    try:
        want, got = theirs(x).double(), ours(x).double()
    except (TypeError, AttributeError) as problem:  # it takes or returns something else
        raise ValueError(f"{type(theirs).__name__} is of another make: {problem}") from None
    # A few roundings to the dtype on the way, in another order.
    allowed = 16 * torch.finfo(like.dtype).eps * max(1.0, float(want.abs().max()))
    error = float((got - want).abs().max())
    if not error <= allowed:
        raise ValueError(
            f"{type(theirs).__name__} computes something else than {type(ours).__name__}: "
            f"results differ by {error:.3g}; at most {allowed:.3g} is rounding"
        )
