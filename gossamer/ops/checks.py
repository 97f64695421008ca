"""Argument checks shared by all ops. Messages read `op: argument is this; must be that`."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_tensor(op: str, name: str, value: Any) -> None:
    """A strided tensor of float32, float16 or bfloat16; TypeError otherwise."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} is {type(value).__name__}; must be a torch.Tensor")
    if value.is_nested:
        raise TypeError(f"{op}: {name} is a nested tensor; must be an ordinary one")
    if value.layout is not torch.strided:
        raise TypeError(f"{op}: {name} has layout {value.layout}; must be torch.strided")
    if value.dtype not in FLOAT_DTYPES:
        valid = ", ".join(dtype_name(dtype) for dtype in FLOAT_DTYPES)
        raise TypeError(f"{op}: {name} has dtype {dtype_name(value.dtype)}; must be one of {valid}")


def check_like(op: str, name: str, value: Any, first_name: str, first: Tensor) -> None:
    """A strided tensor with the dtype (TypeError) and on the device (ValueError) of `first`."""
    check_tensor(op, name, value)
    if value.dtype is not first.dtype:
        raise TypeError(
            f"{op}: {name} has dtype {dtype_name(value.dtype)}; "
            f"must be {dtype_name(first.dtype)}, the dtype of {first_name}"
        )
    if value.device != first.device:
        raise ValueError(
            f"{op}: {name} is on {value.device}; "
            f"must be on {first.device}, the device of {first_name}"
        )


def check_shape(op: str, name: str, value: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    """Exactly this shape; ValueError otherwise."""
    if tuple(value.shape) != shape:
        raise ValueError(
            f"{op}: {name} has shape {list(value.shape)}; must be {list(shape)}, {meaning}"
        )


def check_has_last_dim(op: str, name: str, value: Tensor) -> None:
    """At least one dimension; ValueError otherwise."""
    if value.dim() == 0:
        raise ValueError(f"{op}: {name} has 0 dimensions; must have at least 1")


def one_of(name: str, value: Any, valid: Iterable[str]) -> None:
    """One of these names; ValueError otherwise."""
    names = tuple(valid)
    if value not in names:
        raise ValueError(f"{name} is {value!r}; must be one of {', '.join(names)}")


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the one that is most like it, or all."""
    names = list(valid)
    close = get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; must be one of {', '.join(names)}"


def check_floats(op: str, scale: float, softcap: float) -> None:
    """scale and softcap of attention."""
    if not math.isfinite(scale):
        raise ValueError(f"{op}: scale is {scale}; must be finite")
    if not (math.isfinite(softcap) and softcap >= 0):
        raise ValueError(f"{op}: softcap is {softcap}; must be positive, or 0 for none")


def check_range(
    op: str, what: str, numbers: Tensor, least: int, end: int, things: str = ""
) -> None:
    """Numbers on the CPU from `least` to `end` - 1, of `things`; ValueError otherwise."""
    wrong = numbers[(numbers < least) | (numbers >= end)]
    if wrong.numel():
        none = f"none, as there are {f'no {things}' if things else 'none'}"
        valid = f"{least} to {end - 1}" if end > least else none
        raise ValueError(f"{op}: {what} is {wrong[0].item()}; must be {valid}")


def dtype_name(dtype: torch.dtype) -> str:
    """float32 rather than torch.float32."""
    return str(dtype).removeprefix("torch.")
