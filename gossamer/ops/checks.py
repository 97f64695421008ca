"""Argument checks shared by all ops. Messages read `op: argument is this; must be that`."""

from typing import Any

import torch
from torch import Tensor

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_tensor(op: str, name: str, value: Any) -> None:
    """A strided tensor of float32, float16 or bfloat16; TypeError otherwise."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} is {type(value).__name__}; must be a torch.Tensor")
    if value.layout is not torch.strided:
        raise TypeError(f"{op}: {name} has layout {value.layout}; must be torch.strided")
    if value.dtype not in FLOAT_DTYPES:
        valid = ", ".join(_short(dtype) for dtype in FLOAT_DTYPES)
        raise TypeError(f"{op}: {name} has dtype {_short(value.dtype)}; must be one of {valid}")


def check_like(op: str, name: str, value: Any, first_name: str, first: Tensor) -> None:
    """A strided tensor with the dtype (TypeError) and on the device (ValueError) of `first`."""
    if (
        isinstance(value, Tensor)
        and value.dtype is first.dtype
        and value.device == first.device
        and value.layout is torch.strided
    ):
        return  # one look at each property: this runs in every call of every op
    check_tensor(op, name, value)
    if value.dtype is not first.dtype:
        raise TypeError(
            f"{op}: {name} has dtype {_short(value.dtype)}; "
            f"must be {_short(first.dtype)}, the dtype of {first_name}"
        )
    raise ValueError(
        f"{op}: {name} is on {value.device}; must be on {first.device}, the device of {first_name}"
    )


def check_shape(op: str, name: str, value: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    if tuple(value.shape) != shape:
        raise ValueError(
            f"{op}: {name} has shape {list(value.shape)}; must be {list(shape)}, {meaning}"
        )


def check_has_last_dim(op: str, name: str, value: Tensor) -> None:
    if value.dim() == 0:
        raise ValueError(f"{op}: {name} has 0 dimensions; must have at least 1")


def broadcast_shapes(*shapes: torch.Size) -> list[int] | None:
    """The shape these broadcast to; None when they do not.

    torch.broadcast_shapes does the same in 12 us, several times the work of a small op.
    """
    common: list[int] = []  # innermost dimension first
    for shape in shapes:
        for i, size in enumerate(reversed(shape)):
            if i == len(common):
                common.append(size)
            elif common[i] == 1:
                common[i] = size
            elif size not in (1, common[i]):
                return None
    return common[::-1]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
