"""Argument checks that the norms share."""

import sys
from typing import Any

from torch import Tensor

from gossamer.ops.checks import check_has_last_dim, check_like, check_shape, check_tensor

MAX_WIDTH = 65_536


def check_norm(
    op: str, x: Any, residual: Any, rows: dict[str, Any], eps: Any, *, has_residual: bool
) -> None:
    """x [..., n], a residual like it if there is one, `rows` [n] by name, and eps."""
    check_tensor(op, "x", x)
    if has_residual:
        check_like(op, "residual", residual, "x", x)
    for name, row in rows.items():
        check_like(op, name, row, "x", x)
    check_has_last_dim(op, "x", x)
    width = x.shape[-1]
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"{op}: the last dimension of x is {width}; must be 1 to {MAX_WIDTH}")
    if has_residual:
        check_shape(op, "residual", residual, tuple(x.shape), "the shape of x")
    for name, row in rows.items():
        check_shape(op, name, row, (width,), "the last dimension of x")
    check_eps(op, eps)


def check_eps(op: str, eps: Any) -> None:
    """A finite number >= 0; TypeError or ValueError otherwise."""
    if not isinstance(eps, (int, float)):
        raise TypeError(f"{op}: eps is {type(eps).__name__}; must be a float")
    if not 0 <= eps <= sys.float_info.max:
        raise ValueError(f"{op}: eps is {eps}; must be finite and >= 0")


def given(**rows: Tensor | None) -> dict[str, Tensor]:
    """The rows that are not None, by name."""
    return {name: row for name, row in rows.items() if row is not None}
