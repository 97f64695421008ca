"""Triton kernel of gossamer.ops.rope, and what others share with it."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import POINTERS, Variant

PAIRS = 256  # of channels at once; more are taken in a loop
TILE = 1024  # pairs of a program: 16 bytes per access and thread at 4 warps in 16 bits


@triton.jit
def turn(a, b, cos, sin):
    """The same bits from every kernel: a compiler chooses which product an FMA leaves unrounded."""
    return tl.fma(a, cos, -(b * sin)), tl.fma(b, cos, a * sin)


@triton.jit
def turn_halves(x_ptr, out_ptr, c, s, column, inside, channel_stride, out_stride, out_pair, pairs):
    """Pairs (i, i + pairs), in memory out_pair elements apart."""
    a = tl.load(x_ptr + column * channel_stride, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + (column + pairs) * channel_stride, mask=inside, other=0.0).to(tl.float32)
    a, b = turn(a, b, c, s)
    tl.store(out_ptr + column * out_stride, a.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out_ptr + column * out_stride + out_pair, b.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def turn_neighbours(
    x_ptr, out_ptr, c, s, first, heads_inside, channel_stride, out_stride, pairs,
    HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Pairs (2i, 2i + 1), loaded and stored side by side."""
    channel = 2 * first + tl.arange(0, 2 * PAIRS)[None, :].to(tl.int64)
    inside = heads_inside & (channel < 2 * pairs)
    x = tl.load(x_ptr + channel * channel_stride, mask=inside, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(x, [HEADS, PAIRS, 2]))
    a, b = turn(a, b, c, s)
    y = tl.reshape(tl.join(a, b), [HEADS, 2 * PAIRS])
    tl.store(out_ptr + channel * out_stride, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def turn_rows(
    x_ptr, positions_ptr, cos_ptr, sin_ptr, out_ptr, head_dim, pairs, max_positions,
    channel_stride, out_stride, position_stride, token, heads_inside, IN_PLACE: tl.constexpr,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """HEADS heads of a token, PAIRS pairs of channels at a time; x_ptr and out_ptr are at them.

    In place that is safe: both channels of a pair are read before they are written, and no others.
    """
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
                x_ptr, out_ptr, c, s, first, heads_inside, channel_stride, out_stride, pairs,
                HEADS, PAIRS,
            )  # fmt: skip
        else:
            inside = heads_inside & turned
            out_pair = tl.cast(pairs, tl.int64) * out_stride if IN_PLACE else pairs
            turn_halves(
                x_ptr, out_ptr, c, s, column, inside, channel_stride, out_stride, out_pair, pairs
            )
    for first in range(2 * pairs, head_dim, PAIRS):  # the rest is copied, or left as it is
        column = first + tl.arange(0, PAIRS)[None, :].to(tl.int64)
        inside = heads_inside & (column < head_dim)
        x = tl.load(x_ptr + column * channel_stride, mask=inside & valid, other=nan)
        if IN_PLACE:
            inside = inside & (valid == 0)
        tl.store(out_ptr + column * out_stride, x, mask=inside)


@triton.jit
def rope_kernel(
    x_ptr, positions_ptr, cos_ptr, sin_ptr, out_ptr, heads, head_dim, pairs, max_positions,
    token_stride, head_stride, channel_stride, position_stride, head_blocks,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """One program per token and HEADS heads."""
    token = (tl.program_id(0) // head_blocks).to(tl.int64)
    head = (tl.program_id(0) % head_blocks).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    heads_inside = head < heads
    x_ptr += token * token_stride + head * head_stride
    out_ptr += (token * heads + head) * head_dim
    turn_rows(
        x_ptr, positions_ptr, cos_ptr, sin_ptr, out_ptr, head_dim, pairs, max_positions,
        channel_stride, 1, position_stride, token, heads_inside, False, INTERLEAVED, HEADS, PAIRS,
    )  # fmt: skip


def tile_of(pairs: int) -> dict[str, int]:
    """Pairs and heads of a program."""
    columns = min(max(triton.next_power_of_2(pairs), 32), PAIRS)  # also the step of the copy
    return {"HEADS": TILE // columns, "PAIRS": columns}


def rope(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(rope_kernel, x, positions, (cos, sin, out), cos.shape, interleaved)
    return out


def launch(
    kernel: Any,
    x: Tensor,
    positions: Tensor,
    others: tuple[Tensor, ...],
    table: torch.Size,
    interleaved: bool,
) -> None:
    """`kernel` over all tokens and heads; others: what it takes between positions and sizes."""
    if x.numel() == 0:
        return
    tokens, heads, head_dim = x.shape
    max_positions, pairs = table
    tile = tile_of(pairs)
    tile["HEADS"] = min(tile["HEADS"], triton.next_power_of_2(heads))
    head_blocks = triton.cdiv(heads, tile["HEADS"])
    with torch.cuda.device_of(x):
        kernel[(tokens * head_blocks,)](
            *(x, positions, *others, heads, head_dim, pairs, max_positions),
            *(*x.stride(), positions.stride(0), head_blocks),
            INTERLEAVED=interleaved,
            **tile,
        )


def variant(kernel: Any, p: str, interleaved: bool, pairs: int, *any_stride: str) -> Variant:
    """One program of a kernel like rope's; channels side by side are a program of their own."""
    tensors = {"positions_ptr": "*i64", "cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    sizes = ("heads", "head_dim", "pairs", "max_positions", "head_blocks")
    strides = ("token_stride", "head_stride", "position_stride")
    out = {"out_ptr": p} if "out_ptr" in kernel.arg_names else {}
    return Variant(
        kernel,
        {"x_ptr": p, **tensors, **out} | dict.fromkeys((*sizes, *strides, *any_stride), "i32"),
        {"INTERLEAVED": interleaved, **tile_of(pairs)}
        | ({} if any_stride else {"channel_stride": 1}),
    )


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: each type, width and kind of strides."""
    kinds = ((64, ()), (32, ("channel_stride",)), (256, ()))
    return [
        variant(rope_kernel, p, interleaved, pairs, *any_stride)
        for p, (pairs, any_stride) in zip(POINTERS, kinds, strict=True)
        for interleaved in (False, True)
    ]
