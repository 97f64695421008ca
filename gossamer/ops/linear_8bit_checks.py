"""Checks that linear_int8 and linear_fp8 share, and what their scales mean."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gossamer.ops.checks import FLOAT_DTYPES, dtype_name
from gossamer.ops.linear_checks import check_last_dim, check_weight_shape

GROUP = 128


def check_codes(op: str, name: str, value: object, dtype: torch.dtype, like: Tensor | None) -> None:
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


def check_scale(
    op: str, name: str, scale: object, shapes: Mapping[str, tuple[int, ...]], x: Tensor
) -> None:
    """Float32 scales of one of these shapes."""
    check_codes(op, name, scale, torch.float32, x)
    assert isinstance(scale, Tensor)
    if tuple(scale.shape) not in shapes.values():
        valid = " or ".join(f"{list(shape)} ({what})" for what, shape in shapes.items())
        raise ValueError(f"{op}: {name} has shape {list(scale.shape)}; must be {valid}")


def check_product(
    op: str, x: Tensor, weight: Tensor, bias: Tensor | None, codes: torch.dtype, dtype: torch.dtype
) -> None:
    """x [..., k] and weight [n, k] of `codes`, bias [n] of the result's dtype."""
    check_codes(op, "x", x, codes, None)
    check_last_dim(op, x)
    check_codes(op, "weight", weight, codes, x)
    check_weight_shape(op, "weight", weight, x.shape[-1], "x")
    if dtype not in FLOAT_DTYPES:
        valid = ", ".join(dtype_name(d) for d in FLOAT_DTYPES)
        raise TypeError(f"{op}: dtype is {dtype_name(dtype)}; must be one of {valid}")
    if bias is not None:
        check_codes(op, "bias", bias, dtype, x)
        if tuple(bias.shape) != (weight.shape[0],):
            raise ValueError(
                f"{op}: bias has shape {list(bias.shape)}; "
                f"must be [{weight.shape[0]}], one for each row of weight"
            )
