"""Checks that the ops of x [..., k] times weight [n, k] share."""

from torch import Tensor

from gossamer.ops.checks import check_has_last_dim, check_like, check_shape, check_tensor


def check_input(op: str, x: Tensor) -> None:
    """x [..., k], k at least 1."""
    check_tensor(op, "x", x)
    check_last_dim(op, x)


def check_last_dim(op: str, x: Tensor) -> None:
    """At least one element in a row of x."""
    check_has_last_dim(op, "x", x)
    if x.shape[-1] < 1:
        raise ValueError(f"{op}: the last dimension of x is 0; must be at least 1")


def check_weight_shape(op: str, name: str, weight: Tensor, k: int, source: str) -> None:
    """weight [n, k] whose rows are contiguous: a copy in each call would be slow in silence."""
    if weight.dim() != 2 or weight.shape[1] != k:
        raise ValueError(
            f"{op}: {name} has shape {list(weight.shape)}; must be [n, {k}], k as in {source}"
        )
    if k > 1 and weight.stride(1) != 1:
        raise ValueError(
            f"{op}: {name} has strides {list(weight.stride())}; rows must be contiguous"
        )


def check_weight(op: str, name: str, weight: Tensor, x: Tensor) -> None:
    """weight [n, k] of x's dtype and device."""
    check_like(op, name, weight, "x", x)
    check_weight_shape(op, name, weight, x.shape[-1], "x")


def check_bias(op: str, name: str, bias: Tensor | None, x: Tensor, n: int, weight: str) -> None:
    """None, or one number for each of n rows of `weight`."""
    if bias is not None:
        check_like(op, name, bias, "x", x)
        check_shape(op, name, bias, (n,), f"one for each row of {weight}")
