"""Checks that the ops of x [..., k] times weight [n, k] share."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gossamer.kernels.arguments import Linear8BitArguments, named
from gossamer.ops.checks import (
    FLOAT_DTYPES,
    check_has_last_dim,
    check_like,
    check_shape,
    check_tensor,
    dtype_name,
)

GROUP = 128  # elements that share a scale of linear_fp8


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


# ---- codes of 8 bits and their scales


def _check_part(op: str, name: str, value: object, dtype: torch.dtype, like: Tensor | None) -> None:
    """A strided tensor of this dtype, on the device of `like`."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} is {type(value).__name__}; must be a torch.Tensor")
    if value.dtype is not dtype:
        raise TypeError(
            f"{op}: {name} has dtype {dtype_name(value.dtype)}; must be {dtype_name(dtype)}"
        )
    if like is not None and value.device != like.device:
        raise ValueError(
            f"{op}: {name} is on {value.device}; must be on {like.device}, the device of x"
        )


def check_int8_weight(op: str, weight: object, x: Tensor) -> None:
    """int8 [n, k], k as in x, rows contiguous, on x's device."""
    _check_part(op, "weight", weight, torch.int8, x)
    assert isinstance(weight, Tensor), "checked"
    check_weight_shape(op, "weight", weight, x.shape[-1], "x")


def check_scale(
    op: str, name: str, scale: object, shapes: Mapping[str, tuple[int, ...]], x: Tensor
) -> None:
    """Float32 scales of one of these shapes."""
    _check_part(op, name, scale, torch.float32, x)
    assert isinstance(scale, Tensor)
    if tuple(scale.shape) not in shapes.values():
        valid = " or ".join(f"{list(shape)} ({what})" for what, shape in shapes.items())
        raise ValueError(f"{op}: {name} has shape {list(scale.shape)}; must be {valid}")


def check_codes(op: str, a: Linear8BitArguments, codes: torch.dtype) -> None:
    """x [..., k] and weight [n, k] of `codes`, bias [n] of the result's dtype."""
    x, weight, bias, dtype = a.x, a.weight, a.bias, a.dtype
    _check_part(op, "x", x, codes, None)
    check_last_dim(op, x)
    _check_part(op, "weight", weight, codes, x)
    check_weight_shape(op, "weight", weight, x.shape[-1], "x")
    if dtype not in FLOAT_DTYPES:
        valid = ", ".join(dtype_name(d) for d in FLOAT_DTYPES)
        raise TypeError(f"{op}: dtype is {dtype_name(dtype)}; must be one of {valid}")
    if bias is not None:
        _check_part(op, "bias", bias, dtype, x)
        if tuple(bias.shape) != (weight.shape[0],):
            raise ValueError(
                f"{op}: bias has shape {list(bias.shape)}; "
                f"must be [{weight.shape[0]}], one for each row of weight"
            )


@named(Linear8BitArguments)
def fake_linear_8bit(a: Linear8BitArguments) -> Tensor:
    """What the result looks like."""
    return a.x.new_empty((*a.x.shape[:-1], a.weight.shape[0]), dtype=a.dtype)
