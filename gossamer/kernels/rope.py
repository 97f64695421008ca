"""Triton kernel of gossamer.ops.rope."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import POINTERS, Variant

PAIRS = 256  # of channels at once; more are taken in a loop
TILE = 1024  # pairs of a program: 16 bytes per access and thread at 4 warps in 16 bits


@triton.jit
def turn(a, b, cos, sin):
    return a * cos - b * sin, b * cos + a * sin


@triton.jit
def turn_halves(x_ptr, out_ptr, c, s, column, inside, channel_stride, pairs):
    """Pairs (i, i + pairs)."""
    a = tl.load(x_ptr + column * channel_stride, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + (column + pairs) * channel_stride, mask=inside, other=0.0).to(tl.float32)
    a, b = turn(a, b, c, s)
    tl.store(out_ptr + column, a.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out_ptr + column + pairs, b.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def turn_neighbours(
    x_ptr, out_ptr, c, s, first, heads_inside, channel_stride, pairs, HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """Pairs (2i, 2i + 1), loaded and stored side by side."""
    channel = 2 * first + tl.arange(0, 2 * PAIRS)[None, :].to(tl.int64)
    inside = heads_inside & (channel < 2 * pairs)
    x = tl.load(x_ptr + channel * channel_stride, mask=inside, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, [HEADS, PAIRS, 2]))
    a, b = turn(a, b, c, s)
    y = tl.reshape(tl.join(a, b), [HEADS, 2 * PAIRS])
    tl.store(out_ptr + channel, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rope_kernel(
    x_ptr, positions_ptr, cos_ptr, sin_ptr, out_ptr, heads, head_dim, pairs, max_positions,
    token_stride, head_stride, channel_stride, position_stride, head_blocks,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """One program per token and HEADS heads, PAIRS pairs of channels at a time."""
    token = (tl.program_id(0) // head_blocks).to(tl.int64)
    head = (tl.program_id(0) % head_blocks).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    heads_inside = head < heads
    x_ptr += token * token_stride + head * head_stride
    out_ptr += (token * heads + head) * head_dim
    position = tl.load(positions_ptr + token * position_stride)
    valid = (position >= 0) & (position < max_positions)
    nan = float("nan")  # what a position out of range makes of a row
    for first in range(0, pairs, PAIRS):
        column = first + tl.arange(0, PAIRS)[None, :].to(tl.int64)
        turned = column < pairs
        at = position * pairs + column
        c = tl.load(cos_ptr + at, mask=turned & valid, other=nan)
        s = tl.load(sin_ptr + at, mask=turned & valid, other=nan)
        if INTERLEAVED:
            turn_neighbours(
                x_ptr, out_ptr, c, s, first, heads_inside, channel_stride, pairs, HEADS, PAIRS
            )
        else:
            inside = heads_inside & turned
            turn_halves(x_ptr, out_ptr, c, s, column, inside, channel_stride, pairs)
    for first in range(2 * pairs, head_dim, PAIRS):  # the rest is copied
        column = first + tl.arange(0, PAIRS)[None, :].to(tl.int64)
        inside = heads_inside & (column < head_dim)
        x = tl.load(x_ptr + column * channel_stride, mask=inside & valid, other=nan)
        tl.store(out_ptr + column, x, mask=inside)


def _tile(pairs: int) -> dict[str, int]:
    """Pairs and heads of a program."""
    columns = min(max(triton.next_power_of_2(pairs), 32), PAIRS)  # also the step of the copy
    return {"HEADS": TILE // columns, "PAIRS": columns}


def rope(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    tokens, heads, head_dim = x.shape
    tile = _tile(cos.shape[1])
    tile["HEADS"] = min(tile["HEADS"], triton.next_power_of_2(heads))
    head_blocks = triton.cdiv(heads, tile["HEADS"])
    with torch.cuda.device_of(x):
        rope_kernel[(tokens * head_blocks,)](
            *(x, positions, cos, sin, out, heads, head_dim, cos.shape[1], cos.shape[0]),
            *(*x.stride(), positions.stride(0), head_blocks),
            INTERLEAVED=interleaved,
            **tile,
        )
    return out


def variants() -> list[Variant]:
    """The programs that calls compile to; channels side by side are a program of their own."""
    tensors = {"positions_ptr": "*i64", "cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    sizes = ("heads", "head_dim", "pairs", "max_positions", "head_blocks")
    strides = ("token_stride", "head_stride", "position_stride")
    return [
        Variant(
            rope_kernel,
            {"x_ptr": p, **tensors, "out_ptr": p}
            | dict.fromkeys((*sizes, *strides, *any_stride), "i32"),
            {"INTERLEAVED": interleaved, **_tile(pairs)}
            | ({} if any_stride else {"channel_stride": 1}),
        )
        for p in POINTERS
        for interleaved in (False, True)
        for pairs in (32, 64, 256)
        for any_stride in ((), ("channel_stride",))
    ]
