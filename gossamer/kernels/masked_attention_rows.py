"""Triton kernel of gossamer.ops.masked_attention_rows: one query for each program.

It gathers the keys of the query's list, a block at a time, for all query heads that share the list
and the KV head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.arguments import MaskedRowsArguments, named
from gossamer.kernels.masked_step import UNIT, aligned, bend, bias_strides, finish, weigh
from gossamer.kernels.variants import Variant

_INTERPRETED = triton.knobs.runtime.interpret

POINTERS = ("q_ptr", "k_ptr", "v_ptr", "out_ptr", "lse_ptr", "bias_ptr", "lists_ptr", "keys_ptr")
SIZES = (
    *("q_batch", "q_head", "q_token", "k_batch", "k_head", "k_token"),
    *("v_batch", "v_head", "v_token", "bias_batch", "bias_head", "bias_query", "bias_key"),
    *("heads", "group", "shared", "q_len", "map_batch", "map_heads"),
)


@triton.jit
def gather(
    at, token, row, D: tl.constexpr, WIDTH: tl.constexpr, FLOAT32: tl.constexpr,
):  # fmt: skip
    """These rows, WIDTH channels of which D exist; zeros for negative ones."""
    channel = tl.arange(0, WIDTH)
    ptr = (at + row.to(tl.int64) * token)[:, None] + channel[None, :]
    ptr = tl.multiple_of(ptr, (1, 16))  # bytes, of the first channel
    x = tl.load(ptr, mask=(row >= 0)[:, None] & (channel < D)[None, :], other=0.0)
    return x.to(tl.float32) if FLOAT32 else x


@triton.jit(do_not_specialize=SIZES)
def masked_attention_rows_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, bias_ptr, lists_ptr, keys_ptr,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    bias_batch, bias_head, bias_query, bias_key,
    heads, group, shared, q_len, map_batch, map_heads, scale, softcap,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    CAPPED: tl.constexpr, BIASED: tl.constexpr, FLOAT32: tl.constexpr,
):  # fmt: skip
    """Programs are queries of `shared` heads each: those of a KV head, or one where lists differ.

    Strides of q, k and v are in units of UNIT elements. KEYS: gathered at a time. FLOAT32: multiply
    in float32, whatever q is.
    """
    query = tl.program_id(0) % q_len
    sets = heads // shared
    first_head = tl.program_id(0) // q_len % sets * shared
    batch = (tl.program_id(0) // q_len // sets).to(tl.int64)
    of_heads = tl.arange(0, ROWS)
    inside = of_heads < shared
    head = (first_head + of_heads).to(tl.int64)
    map_row = tl.where(map_batch > 1, batch, 0) * map_heads + tl.where(map_heads > 1, first_head, 0)
    begin = tl.load(lists_ptr + map_row * q_len + query)
    end = tl.load(lists_ptr + map_row * q_len + query + 1)

    q_at = q_ptr + (batch * q_batch + query.to(tl.int64) * q_token) * UNIT
    k_at = k_ptr + (batch * k_batch + (first_head // group).to(tl.int64) * k_head) * UNIT
    v_at = v_ptr + (batch * v_batch + (first_head // group).to(tl.int64) * v_head) * UNIT
    bias_at = bias_ptr + batch * bias_batch + head * bias_head + query.to(tl.int64) * bias_query
    q = gather(q_at, q_head * UNIT, tl.where(inside, head, -1), D, WIDTH, FLOAT32)

    largest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    lane = tl.arange(0, KEYS)
    for first in range(begin, end, KEYS):
        key = tl.load(keys_ptr + first + lane, mask=first + lane < end, other=-1)
        k = gather(k_at, k_token * UNIT, key, D, WIDTH, FLOAT32)
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3")
        there = inside[:, None] & (key >= 0)[None, :]
        ptr = bias_at[:, None] + (key.to(tl.int64) * bias_key)[None, :]
        scores = bend(scores, ptr, there, scale, softcap, CAPPED, BIASED)
        scores = tl.where((key >= 0)[None, :], scores, -float("inf"))
        weights, largest, total, shrink = weigh(scores, largest, total, 1.0)
        v = gather(v_at, v_token * UNIT, key, D, WIDTH, FLOAT32)
        sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None], input_precision="tf32x3")

    out, lse = finish(sums, largest, total)
    place = (batch * heads + head) * q_len + query
    tl.store(lse_ptr + place, lse, mask=inside)
    channel = tl.arange(0, WIDTH)
    at = tl.multiple_of((out_ptr + place * D)[:, None] + channel[None, :], (1, 16))
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (channel < D)[None, :])


@named(MaskedRowsArguments)
def masked_attention_rows(a: MaskedRowsArguments) -> tuple[Tensor, Tensor]:
    """The launcher; arguments are those of the op, already checked."""
    q, bias, softcap = a.q, a.bias, a.softcap
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if lse.numel() == 0:
        return out, lse
    q, k, v = aligned(q), aligned(a.k), aligned(a.v)
    group = q.shape[1] // k.shape[1]
    shared = _shared(group, a.heads)
    programs = q.shape[0] * (q.shape[1] // shared) * q.shape[2]
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    with torch.cuda.device_of(q):
        masked_attention_rows_kernel[(programs,)](
            *(q, k, v, out, lse, q if bias is None else bias, a.row_offsets, a.keys),
            *(*(s // UNIT.value for s in strides), *bias_strides(bias, q, k)),
            *(q.shape[1], group, shared, q.shape[2], a.batch, a.heads, a.scale, softcap),
            CAPPED=softcap != 0, BIASED=bias is not None,
            FLOAT32=_INTERPRETED and q.dtype == torch.bfloat16,
            D=q.shape[3], **_tile(q.shape[3], q.element_size()),
        )  # fmt: skip
    return out, lse


def _shared(group: int, map_heads: int) -> int:
    """Heads of a program: those of a KV head, in parts where they are more than 16."""
    if map_heads > 1:
        return 1
    return max(size for size in range(1, min(group, 16) + 1) if group % size == 0)


def _tile(head_dim: int, nbytes: int) -> dict[str, int]:
    """Rows, keys of a step and warps; head_dim is padded to a power of two."""
    width = triton.next_power_of_2(head_dim)
    keys = max(min(64, 8192 // (width * nbytes // 2)), 16)
    return {"WIDTH": width, "ROWS": 16, "KEYS": keys, "num_warps": 4 if width < 256 else 8}


def variants() -> list[Variant]:
    """Narrow and wide, with and without more than a scale."""
    return [
        _variant("*fp16", 64, ""),
        _variant("*bf16", 128, "softcap"),
        _variant("*fp16", 256, "bias"),
        _variant("*fp32", 128, "bias"),
    ]


def _variant(dtype: str, head_dim: int, bent: str) -> Variant:
    signature = dict.fromkeys(POINTERS, dtype) | {"lse_ptr": "*fp32"}
    signature |= dict.fromkeys(("lists_ptr", "keys_ptr"), "*i32")
    signature |= dict.fromkeys(SIZES, "i32") | dict.fromkeys(("scale", "softcap"), "fp32")
    constants = {"D": head_dim, "CAPPED": bent == "softcap", "BIASED": bent == "bias"}
    tile = _tile(head_dim, 4 if dtype == "*fp32" else 2)
    num_warps = tile.pop("num_warps")
    return Variant(
        masked_attention_rows_kernel, signature, constants | tile | {"FLOAT32": False}, num_warps
    )
