"""Checks of parameters. Messages read `Mask: parameter is this; must be that`."""

from typing import Any

import torch
from torch import Tensor


def whole(mask: str, name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """An integer in low..high, both included; TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{mask}: {name} is {value!r}; must be an integer")
    if low is not None and high is not None and not low <= value <= high:
        raise ValueError(f"{mask}: {name} is {value}; must be {low} to {high}")
    if low is not None and value < low:
        raise ValueError(f"{mask}: {name} is {value}; must be at least {low}")
    return value


def sizes(where: str, q_len: Any, kv_len: Any) -> None:
    """At least one query and one key, and few enough for 32-bit indices."""
    whole(where, "q_len", q_len, 1, LONGEST)
    whole(where, "kv_len", kv_len, 1, LONGEST)


def same_device(mask: str, table: Tensor, index: Tensor) -> None:
    """A mask that holds a tensor can only be asked with indices on the same device."""
    if table.device != index.device:
        raise ValueError(
            f"{mask} is on {table.device}, the indices are on {index.device}; "
            f"use mask.to({str(index.device)!r})"
        )


def as_device(device: torch.device | str | int | None) -> torch.device:
    """`cuda` gets its index, so that devices compare equal when they are the same."""
    return torch.empty(0, device="cpu" if device is None else device).device


LONGEST = 2**31 - 256  # a tile beyond the end still has 32-bit indices
