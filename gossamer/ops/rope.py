"""Rotary position embedding of queries and keys, straight from a fused projection's output."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.ops.checks import check_shape
from gossamer.ops.kv_checks import check_plain, check_rows
from gossamer.ops.registry import Op


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


def _reference(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    at = positions.long()  # as an oracle it is called with everything in float64
    inside = (at >= 0) & (at < cos.shape[0])
    c, s = (table.to(wide)[at * inside].unsqueeze(1) for table in (cos, sin))
    turned, rest = x.to(wide).tensor_split([2 * cos.shape[1]], dim=-1)
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * c - b * s, b * c + a * s), dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat((a * c - b * s, b * c + a * s), dim=-1)
    out = torch.cat((turned, rest), dim=-1).to(x.dtype)
    return torch.where(inside[:, None, None], out, torch.nan).contiguous()


def _check(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> None:
    op = "rope"
    check_rows(op, x)
    check_plain(op, "positions", positions, torch.int64, x.device)
    check_plain(op, "cos", cos, torch.float32, x.device)
    check_plain(op, "sin", sin, torch.float32, x.device)
    check_shape(op, "positions", positions, (x.shape[0],), "one for each token of x")
    pairs = x.shape[2] // 2
    if cos.dim() != 2 or cos.shape[0] < 1 or not 1 <= cos.shape[1] <= pairs:
        raise ValueError(
            f"{op}: cos has shape {list(cos.shape)}; must be [max_positions, rotary_dim / 2], "
            f"at least one position and 1 to {pairs} pairs of channels"
        )
    check_shape(op, "sin", sin, tuple(cos.shape), "the shape of cos")
    for name, table in (("cos", cos), ("sin", sin)):
        if not table.is_contiguous():  # a copy in each call would be slow in silence
            raise ValueError(f"{op}: {name} has strides {list(table.stride())}; must be contiguous")
    if not isinstance(interleaved, bool):
        raise TypeError(f"{op}: interleaved is {type(interleaved).__name__}; must be a bool")


def _check_values(x: Tensor, positions: Tensor, cos: Tensor, *_: object) -> None:
    if positions.device.type != "cpu" or positions.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(positions))
    if low < 0 or high >= cos.shape[0]:
        wrong = low if low < 0 else high
        raise ValueError(f"rope: a position is {wrong}; must be 0 to {cos.shape[0] - 1}")


def _fake(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    return x.new_empty(x.shape)


def _example(make: Callable[..., Tensor]) -> tuple[object, ...]:
    x = make(3, 2, 40)
    positions = torch.tensor([4, 0, 2]).to(x.device)
    return x, positions, make(5, 16).float(), make(5, 16).float(), False


_op = Op(
    "rope",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=_fake,
    example=_example,
    triton="gossamer.kernels.rope:rope",
)
