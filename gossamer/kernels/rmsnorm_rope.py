"""Triton kernel of gossamer.ops.rmsnorm_rope."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.arguments import RmsnormRopeArguments, named
from gossamer.kernels.rope import turn
from gossamer.kernels.variants import Variant

TILE = 1024  # pairs of channels of a program


@triton.jit
def load_floats(ptr, offset, inside):
    return tl.load(ptr + offset, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def rmsnorm_rope_kernel(
    x_ptr, weight_ptr, positions_ptr, cos_ptr, sin_ptr, out_ptr, heads, head_dim, pairs,
    max_positions, eps, token_stride, head_stride, channel_stride, position_stride, weight_stride,
    head_blocks, INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    """One program per token and HEADS heads, whose channels stay in registers: at most 2 * PAIRS
    that are turned, and REST others."""
    token = (tl.program_id(0) // head_blocks).to(tl.int64)
    head = (tl.program_id(0) % head_blocks).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    heads_inside = head < heads
    x_ptr += token * token_stride + head * head_stride
    weight_ptr += head * weight_stride
    out_ptr += (token * heads + head) * head_dim
    position = tl.load(positions_ptr + token * position_stride)
    valid = (position >= 0) & (position < max_positions)
    nan = float("nan")  # what a position out of range makes of a row
    column = tl.arange(0, PAIRS)[None, :].to(tl.int64)
    at = position * pairs + column
    c = tl.load(cos_ptr + at, mask=(column < pairs) & valid, other=nan)
    s = tl.load(sin_ptr + at, mask=(column < pairs) & valid, other=nan)
    if INTERLEAVED:
        channel = tl.arange(0, 2 * PAIRS)[None, :].to(tl.int64)
        inside = heads_inside & (channel < 2 * pairs)
        x = load_floats(x_ptr, channel * channel_stride, inside)
        total = tl.sum(x * x, 1)
    else:
        inside = heads_inside & (column < pairs)
        a = load_floats(x_ptr, column * channel_stride, inside)
        b = load_floats(x_ptr, (column + pairs) * channel_stride, inside)
        total = tl.sum(a * a + b * b, 1)
    if REST > 0:
        other = 2 * pairs + tl.arange(0, REST)[None, :].to(tl.int64)
        others_inside = heads_inside & (other < head_dim)
        rest = load_floats(x_ptr, other * channel_stride, others_inside)
        total += tl.sum(rest * rest, 1)
    scale = (1.0 / tl.sqrt(total / head_dim + eps))[:, None]
    if INTERLEAVED:
        x = x * scale * load_floats(weight_ptr, channel, inside)
        a, b = tl.split(tl.reshape(x, [HEADS, PAIRS, 2]))
        a, b = turn(a, b, c, s)
        y = tl.reshape(tl.join(a, b), [HEADS, 2 * PAIRS])
        tl.store(out_ptr + channel, y.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        a = a * scale * load_floats(weight_ptr, column, inside)
        b = b * scale * load_floats(weight_ptr, column + pairs, inside)
        a, b = turn(a, b, c, s)
        tl.store(out_ptr + column, a.to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(out_ptr + column + pairs, b.to(out_ptr.dtype.element_ty), mask=inside)
    if REST > 0:
        y = tl.where(valid, rest * scale * load_floats(weight_ptr, other, others_inside), nan)
        tl.store(out_ptr + other, y.to(out_ptr.dtype.element_ty), mask=others_inside)


def _tile(heads: int, head_dim: int, pairs: int) -> dict[str, int]:
    """Heads, pairs and other channels of a program."""
    columns = max(triton.next_power_of_2(pairs), 16)
    rest = head_dim - 2 * pairs
    rest = max(triton.next_power_of_2(rest), 16) if rest else 0
    widest = max(columns, rest // 2)
    count = min(max(TILE // widest, 1), triton.next_power_of_2(heads))
    return {"HEADS": count, "PAIRS": columns, "REST": rest}


@named(RmsnormRopeArguments)
def rmsnorm_rope(a: RmsnormRopeArguments) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    out = torch.empty(a.x.shape, dtype=a.x.dtype, device=a.x.device)
    if out.numel() == 0:
        return out
    tokens, heads, head_dim = a.x.shape
    max_positions, pairs = a.cos.shape
    tile = _tile(heads, head_dim, pairs)
    head_blocks = triton.cdiv(heads, tile["HEADS"])
    weight, stride = a.weight.contiguous(), head_dim if a.weight.dim() == 2 else 0
    with torch.cuda.device_of(a.x):
        rmsnorm_rope_kernel[(tokens * head_blocks,)](
            *(a.x, weight, a.positions, a.cos, a.sin, out, heads, head_dim, pairs, max_positions),
            *(a.eps, *a.x.stride(), a.positions.stride(0), stride, head_blocks),
            INTERLEAVED=a.interleaved,
            **tile,
        )
    return out


def variants() -> list[Variant]:
    """Some of the programs that calls compile to."""
    tensors = {"positions_ptr": "*i64", "cos_ptr": "*fp32", "sin_ptr": "*fp32", "eps": "fp32"}
    sizes = ("heads", "head_dim", "pairs", "max_positions", "head_blocks", "weight_stride")
    strides = ("token_stride", "head_stride", "position_stride")
    return [
        Variant(
            rmsnorm_rope_kernel,
            {"x_ptr": p, "weight_ptr": p, "out_ptr": p, **tensors}
            | dict.fromkeys((*sizes, *strides), "i32"),
            {"INTERLEAVED": interleaved, "channel_stride": 1} | _tile(32, head_dim, pairs),
        )
        for p, head_dim, pairs in (("*bf16", 128, 64), ("*fp32", 1024, 256))
        for interleaved in (False, True)
    ]
