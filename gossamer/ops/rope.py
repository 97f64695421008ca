"""Rotary position embedding of queries and keys, straight from a fused projection's output."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.ops.registry import Op
from gossamer.ops.rope_checks import check_positions, check_rope


def rope(
    x: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    interleaved: bool = False,
    backend: str | None = None,
) -> Tensor:
    """x with pairs of channels (a, b) turned to (a cos - b sin, b cos + a sin), in float32.

    x: [tokens, heads, head_dim], float32, float16 or bfloat16, any strides. positions: int64
    [tokens], the line of cos and sin that turns a token. cos, sin: float32, contiguous
    [max_positions, rotary_dim / 2]; channels from rotary_dim on are copied. Pairs are
    (i, i + rotary_dim / 2), or (2i, 2i + 1) if interleaved.
    Returns a contiguous tensor of x's shape and dtype. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, position out of range).
    Positions on a GPU are not looked at, as that would wait for them: rows of one out of range
    become NaN.
    """
    result: Tensor = _op(x, positions, cos, sin, interleaved, backend=backend)
    return result


def turned(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    """What `rope` means, in plain torch."""
    wide = torch.promote_types(x.dtype, torch.float32)
    at = positions.long()  # as an oracle it is called with everything in float64
    inside = (at >= 0) & (at < cos.shape[0])
    c, s = (table.to(wide)[at * inside].unsqueeze(1) for table in (cos, sin))
    front, rest = x.to(wide).tensor_split([2 * cos.shape[1]], dim=-1)
    if interleaved:
        a, b = front[..., 0::2], front[..., 1::2]
        front = torch.stack((a * c - b * s, b * c + a * s), dim=-1).flatten(-2)
    else:
        a, b = front.chunk(2, dim=-1)
        front = torch.cat((a * c - b * s, b * c + a * s), dim=-1)
    out = torch.cat((front, rest), dim=-1).to(x.dtype)
    return torch.where(inside[:, None, None], out, torch.nan).contiguous()


def _check(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> None:
    check_rope("rope", x, positions, cos, sin, interleaved)


def _check_values(x: Tensor, positions: Tensor, cos: Tensor, *_: object) -> None:
    check_positions("rope", positions, cos)


def example(make: Callable[..., Tensor]) -> tuple[object, ...]:
    """Three tokens of two heads."""
    x = make(3, 2, 40)
    positions = torch.tensor([4, 0, 2]).to(x.device)
    return x, positions, make(5, 16).float(), make(5, 16).float(), False


_op = Op(
    "rope",
    reference=turned,
    check=_check,
    check_values=_check_values,
    fake=lambda x, *_: x.new_empty(x.shape),
    example=example,
    triton="gossamer.kernels.rope:rope",
)
