"""Triton kernel of gossamer.ops.rope_append."""

from typing import Any

import torch
import triton
import triton.language as tl

from gossamer.kernels.arguments import RopeAppendArguments, named
from gossamer.kernels.rope import turn
from gossamer.kernels.variants import Variant

TOKENS = 16  # of a program: the fewest rows of a product on tensor cores
# The interpreter multiplies the bits of bfloat16 as if they were integers.
_INTERPRETED = triton.knobs.runtime.interpret


@triton.jit
def store_row(ptr, kv_head, slot, x, channel, inside, block_stride, head_stride):
    """Into a dense block: chunks of 8 channels, in each of them 32 tokens."""
    at = (slot // 32) * block_stride + kv_head * head_stride + (slot % 32) * 8
    offset = (channel // 8) * 256 + channel % 8
    tl.store(ptr + at[:, None] + offset, x.to(ptr.dtype.element_ty), mask=inside)


@triton.jit
def store_head(
    q_ptr, k_ptr, head, token, slot, x, channel, inside, kept, query_heads, head_dim,
    block_stride, head_stride,
):  # fmt: skip
    """Channels of a query to the output, of a key to its block."""
    if head < query_heads:
        row = (token * query_heads + head)[:, None] * head_dim
        tl.store(q_ptr + row + channel, x.to(q_ptr.dtype.element_ty), mask=inside)
    else:
        store_row(
            k_ptr, head - query_heads, slot, x, channel, inside & kept, block_stride,
            head_stride,
        )  # fmt: skip


@triton.jit
def multiply_halves(x, y, matrix, head_dim, inside, WIDE: tl.constexpr, PAIRS: tl.constexpr):
    """Rows (x, y) times a matrix; x its first head_dim / 2 channels, y the others."""
    line = tl.arange(0, PAIRS)[:, None]
    known = (line < head_dim // 2) & inside
    upper = tl.load(matrix + line * head_dim, mask=known, other=0.0)
    lower = tl.load(matrix + (line + head_dim // 2) * head_dim, mask=known, other=0.0)
    if WIDE:
        x, y = x.to(tl.float32), y.to(tl.float32)
        upper, lower = upper.to(tl.float32), lower.to(tl.float32)
    out = tl.dot(x, upper, input_precision="ieee")
    return tl.dot(y, lower, out, input_precision="ieee")


@triton.jit(do_not_specialize=["tokens"])
def rope_append_kernel(
    qkv_ptr, positions_ptr, cos_ptr, sin_ptr, k_ptr, v_ptr, slots_ptr, q_ptr, norm_ptr,
    matrices_ptr, offsets_ptr, tokens, query_heads, kv_heads, head_dim, max_positions, num_slots,
    eps, token_stride, head_stride, position_stride, slot_stride, k_block_stride, k_head_stride,
    v_block_stride, v_head_stride, NORM: tl.constexpr, TURN: tl.constexpr, SHIFT: tl.constexpr,
    WIDE: tl.constexpr, TOKENS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """One program per head and TOKENS tokens; pairs of channels are (i, i + head_dim / 2)."""
    head = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    there = token < tokens
    pairs = head_dim // 2
    first = tl.arange(0, PAIRS)[None, :]
    second = first + pairs
    inside = there[:, None] & (first < pairs)
    row = qkv_ptr + (token * token_stride + head * head_stride)[:, None]
    a = tl.load(row + first, mask=inside, other=0.0)
    b = tl.load(row + second, mask=inside, other=0.0)
    slot = tl.load(slots_ptr + token * slot_stride, mask=there, other=-1)
    kept = ((slot >= 0) & (slot < num_slots))[:, None]
    if head >= query_heads + kv_heads:
        to = head - query_heads - kv_heads
        stored = inside & kept
        store_row(v_ptr, to, slot, a, first, stored, v_block_stride, v_head_stride)
        store_row(v_ptr, to, slot, b, second, stored, v_block_stride, v_head_stride)
    else:
        x, y = a.to(tl.float32), b.to(tl.float32)
        if NORM:
            scale = 1.0 / tl.sqrt(tl.sum(x * x + y * y, 1) / head_dim + eps)
            weight, known = norm_ptr + head * head_dim, first < pairs
            x = x * scale[:, None] * tl.load(weight + first, mask=known, other=0.0).to(tl.float32)
            y = y * scale[:, None] * tl.load(weight + second, mask=known, other=0.0).to(tl.float32)
        position = tl.load(positions_ptr + token * position_stride, mask=there, other=0)[:, None]
        valid = (position >= 0) & (position < max_positions) & inside
        nan = float("nan")  # what a position out of range makes of a row
        c = tl.load(cos_ptr + position * pairs + first, mask=valid, other=nan)
        s = tl.load(sin_ptr + position * pairs + first, mask=valid, other=nan)
        x, y = turn(x, y, c, s)
        if TURN:
            # Padding is 0 times a number, not times NaN.
            x, y = tl.where(inside, x, 0.0).to(a.dtype), tl.where(inside, y, 0.0).to(a.dtype)
            channel = tl.arange(0, 2 * PAIRS)[None, :]
            matrix = matrices_ptr + head * head_dim * head_dim + channel
            out = multiply_halves(x, y, matrix, head_dim, channel < head_dim, WIDE, PAIRS)
            if SHIFT:
                offset = offsets_ptr + head * head_dim + channel
                out += tl.load(offset, mask=channel < head_dim, other=0.0).to(tl.float32)
            store_head(
                q_ptr, k_ptr, head, token, slot, out, channel,
                there[:, None] & (channel < head_dim), kept, query_heads, head_dim,
                k_block_stride, k_head_stride,
            )  # fmt: skip
        else:
            store_head(
                q_ptr, k_ptr, head, token, slot, x, first, inside, kept, query_heads, head_dim,
                k_block_stride, k_head_stride,
            )  # fmt: skip
            store_head(
                q_ptr, k_ptr, head, token, slot, y, second, inside, kept, query_heads, head_dim,
                k_block_stride, k_head_stride,
            )  # fmt: skip


def _options(head_dim: int, norm: bool, turned: bool, shifted: bool) -> dict[str, Any]:
    pairs = max(triton.next_power_of_2(head_dim // 2), 16)
    flags = {"NORM": norm, "TURN": turned, "SHIFT": shifted, "WIDE": _INTERPRETED}
    return {**flags, "TOKENS": TOKENS, "PAIRS": pairs}


def _warps(turned: bool, wide: bool) -> int:
    """Both halves of a matrix are in registers; those of float32 are twice as large."""
    return 8 if turned and wide else 4


@named(RopeAppendArguments)
def rope_append(a: RopeAppendArguments) -> None:
    """The launcher; arguments are those of the op, already checked."""
    tokens, heads, head_dim = a.qkv.shape
    if a.qkv.numel() == 0:
        return
    k, v = (blocks.view(a.qkv.dtype) for blocks in (a.k_blocks, a.v_blocks))
    given = [None if x is None else x.contiguous() for x in (a.norm, a.matrices, a.offsets)]
    with torch.cuda.device_of(a.qkv):
        rope_append_kernel[(heads, triton.cdiv(tokens, TOKENS))](
            *(a.qkv, a.positions, a.cos, a.sin, k, v, a.slots, a.q),
            *(a.q if x is None else x for x in given),
            *(tokens, a.q.shape[1], k.shape[1], head_dim, len(a.cos), 32 * k.shape[0], a.eps),
            *(*a.qkv.stride()[:2], a.positions.stride(0), a.slots.stride(0)),
            *(*k.stride()[:2], *v.stride()[:2]),
            **_options(head_dim, *(x is not None for x in given)),
            num_warps=_warps(a.matrices is not None, a.qkv.dtype is torch.float32),
        )


def variants() -> list[Variant]:
    """Some of the programs that calls compile to."""
    rows = ("qkv_ptr", "k_ptr", "v_ptr", "q_ptr", "norm_ptr", "matrices_ptr", "offsets_ptr")
    tensors = {"positions_ptr": "*i64", "slots_ptr": "*i64", "cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    sizes = ("tokens", "query_heads", "kv_heads", "head_dim", "max_positions", "num_slots")
    strides = [name for name in rope_append_kernel.arg_names if name.endswith("_stride")]
    return [
        Variant(
            rope_append_kernel,
            {"eps": "fp32", **tensors}
            | dict.fromkeys(rows, p)
            | dict.fromkeys((*sizes, *strides), "i32"),
            _options(head_dim, *kind) | {"WIDE": False},
            _warps(kind[1], p == "*fp32"),
        )
        for p, head_dim, kind in (
            ("*bf16", 128, (False, False, False)),
            ("*fp16", 64, (True, False, False)),
            ("*bf16", 128, (False, True, True)),
            ("*fp16", 64, (False, True, False)),
            ("*fp32", 80, (False, True, True)),
        )
    ]
