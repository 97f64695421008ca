"""Argument checks that the ops with rotary embeddings share."""

from typing import Any

import torch
from torch import Tensor

from gossamer.ops.checks import check_shape
from gossamer.ops.kv_checks import check_plain, check_rows


def check_rope(
    op: str,
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: Any,
    name: str = "x",
) -> None:
    """Rows, their positions and the tables that turn them."""
    check_rows(op, x, name)
    check_plain(op, "positions", positions, torch.int64, x.device)
    check_plain(op, "cos", cos, torch.float32, x.device)
    check_plain(op, "sin", sin, torch.float32, x.device)
    check_shape(op, "positions", positions, (x.shape[0],), f"one for each token of {name}")
    pairs = x.shape[2] // 2
    if cos.dim() != 2 or cos.shape[0] < 1 or not 1 <= cos.shape[1] <= pairs:
        raise ValueError(
            f"{op}: cos has shape {list(cos.shape)}; must be [max_positions, rotary_dim / 2], "
            f"at least one position and 1 to {pairs} pairs of channels"
        )
    check_shape(op, "sin", sin, tuple(cos.shape), "the shape of cos")
    for which, table in (("cos", cos), ("sin", sin)):
        if not table.is_contiguous():  # a copy in each call would be slow in silence
            raise ValueError(
                f"{op}: {which} has strides {list(table.stride())}; must be contiguous"
            )
    if not isinstance(interleaved, bool):
        raise TypeError(f"{op}: interleaved is {type(interleaved).__name__}; must be a bool")


def check_positions(op: str, positions: Tensor, cos: Tensor) -> None:
    """Positions on the CPU within the tables; ValueError otherwise."""
    if positions.device.type != "cpu" or positions.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(positions))
    if low < 0 or high >= cos.shape[0]:
        wrong = low if low < 0 else high
        raise ValueError(f"{op}: a position is {wrong}; must be 0 to {cos.shape[0] - 1}")
