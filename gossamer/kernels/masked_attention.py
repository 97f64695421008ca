"""Triton kernel of gossamer.ops.masked_attention: a row of tiles of one head for each program."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.arguments import MaskedArguments, named
from gossamer.kernels.masked_step import UNIT, aligned, bias_strides, finish
from gossamer.kernels.masked_tiles import attend, count_full, load_rows
from gossamer.kernels.variants import Variant

# The interpreter multiplies the bits of bfloat16 as if they were integers.
_INTERPRETED = triton.knobs.runtime.interpret

POINTERS = (
    *("q_ptr", "k_ptr", "v_ptr", "out_ptr", "lse_ptr", "bias_ptr"),
    *("offsets_ptr", "columns_ptr", "kinds_ptr", "bits_ptr", "order_ptr"),
)
# Whether one of these is 1 or a multiple of 16 makes no program worth compiling.
SIZES = (
    *("q_batch", "q_head", "q_token", "k_batch", "k_head", "k_token"),
    *("v_batch", "v_head", "v_token", "bias_batch", "bias_head", "bias_query", "bias_key"),
    *("heads", "group", "q_len", "kv_len", "rows", "map_heads", "replicas", "replica_heads"),
)


@triton.jit(do_not_specialize=SIZES)
def masked_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, bias_ptr,
    offsets_ptr, columns_ptr, kinds_ptr, bits_ptr, order_ptr,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
    bias_batch, bias_head, bias_query, bias_key,
    heads, group, q_len, kv_len, rows, map_heads, replicas, replica_heads, scale, softcap,
    D: tl.constexpr, WIDTH: tl.constexpr, TILE_Q: tl.constexpr, TILE_K: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAPPED: tl.constexpr, BIASED: tl.constexpr,
    BENT: tl.constexpr, FLOAT32: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Programs are items of `order`, each with its replicas: batches and heads that share the map.

    A program has ROWS queries of its tiles. Strides of q, k and v are in units of UNIT elements.
    KEYS: of a step. BENT: scores are not just q k times a positive scale. FLOAT32: multiply in
    float32, whatever q is.
    """
    PARTS: tl.constexpr = TILE_Q // ROWS
    part = tl.program_id(0) % PARTS
    program = tl.program_id(0) // PARTS
    row = tl.load(order_ptr + program // replicas)
    replica = program % replicas
    # One of the two is 0: a map is for one batch (or head) or for all of them.
    batch = (row // rows // map_heads + replica // replica_heads).to(tl.int64)
    head = (row // rows % map_heads + replica % replica_heads).to(tl.int64)
    begin = tl.load(offsets_ptr + row)
    end = tl.load(offsets_ptr + row + 1)
    first_query = row % rows * TILE_Q + part * ROWS
    query = first_query + tl.arange(0, ROWS)
    inside = query < q_len

    q_at = q_ptr + (batch * q_batch + head * q_head) * UNIT
    k_at = k_ptr + (batch * k_batch + head // group * k_head) * UNIT
    v_at = v_ptr + (batch * v_batch + head // group * v_head) * UNIT
    bias_at = bias_ptr + batch * bias_batch + head * bias_head + query.to(tl.int64) * bias_query
    q = load_rows(q_at, q_token * UNIT, first_query, q_len, True, ROWS, D, WIDTH, FLOAT32)

    largest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    STEPS: tl.constexpr = TILE_K // KEYS  # of a tile
    full = begin + count_full(kinds_ptr, begin, end)
    # Read a step ahead: Triton would fetch it by way of shared memory and K and V late.
    column = tl.load(columns_ptr + begin, mask=begin < end, other=0)
    for i in tl.range(begin * STEPS, full * STEPS, num_stages=STAGES):
        first = column * TILE_K + i % STEPS * KEYS
        after = (i + 1) // STEPS
        column = tl.load(columns_ptr + after, mask=after < end, other=0)
        sums, largest, total = attend(
            q, sums, largest, total, k_at, v_at, k_token * UNIT, v_token * UNIT,
            bias_at, bias_key, bits_ptr, first, inside, kv_len, scale, softcap,
            False, D, WIDTH, KEYS, ROWS, TILE_K, CAPPED, BIASED, FLOAT32, BENT,
        )  # fmt: skip
    pattern = tl.load(kinds_ptr + full, mask=full < end, other=0)
    for i in tl.range(full * STEPS, end * STEPS, num_stages=STAGES):
        first = column * TILE_K + i % STEPS * KEYS
        words_ptr = bits_ptr + (pattern.to(tl.int64) * TILE_Q + part * ROWS) * (TILE_K // 32)
        after = (i + 1) // STEPS
        column = tl.load(columns_ptr + after, mask=after < end, other=0)
        pattern = tl.load(kinds_ptr + after, mask=after < end, other=0)
        sums, largest, total = attend(
            q, sums, largest, total, k_at, v_at, k_token * UNIT, v_token * UNIT,
            bias_at, bias_key, words_ptr, first, inside, kv_len, scale, softcap,
            True, D, WIDTH, KEYS, ROWS, TILE_K, CAPPED, BIASED, FLOAT32, BENT,
        )  # fmt: skip
    out, lse = finish(sums, largest, total)
    place = (batch * heads + head) * q_len + query
    tl.store(lse_ptr + place, lse, mask=inside)
    channel = tl.arange(0, WIDTH)
    at = tl.multiple_of((out_ptr + place * D)[:, None] + channel[None, :], (1, 16))
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (channel < D)[None, :])


@named(MaskedArguments)
def masked_attention(a: MaskedArguments) -> tuple[Tensor, Tensor | None]:
    """The launcher; arguments are those of the op, already checked."""
    q, bias, scale, softcap = a.q, a.bias, a.scale, a.softcap  # `work` is for the CUDA kernel
    batch, heads, rows = a.order.shape
    tile_q, tile_k = a.bits.shape[1], 32 * a.bits.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    replica_heads = 1 if heads > 1 else q.shape[1]
    replicas = (1 if batch > 1 else q.shape[0]) * replica_heads
    programs = a.order.numel() * replicas
    if programs == 0:
        return out, lse if a.with_lse else None
    q, k, v = aligned(q), aligned(a.k), aligned(a.v)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    bent = softcap != 0 or bias is not None or scale <= 0
    tile = _tile(tile_q, tile_k, q.shape[3], q.element_size(), bent, bias is not None)
    programs *= tile_q // tile["ROWS"]
    with torch.cuda.device_of(q):
        masked_attention_kernel[(programs,)](
            *(q, k, v, out, lse, q if bias is None else bias),
            *(a.offsets, *a.tiles.unbind(), a.bits, a.order, *(s // UNIT.value for s in strides)),
            *bias_strides(bias, q, k),
            *(q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2]),
            *(rows, heads, replicas, replica_heads, scale, softcap),
            D=q.shape[3], CAPPED=softcap != 0, BIASED=bias is not None, BENT=bent,
            FLOAT32=_INTERPRETED and q.dtype == torch.bfloat16,
            **tile,
        )  # fmt: skip
    return out, lse if a.with_lse else None


# Queries and keys of a step and how many steps are on their way, by padded head_dim: as many as
# compile without spilling (or with a few bytes of it) for sm_80 and sm_90.
_HALF = {32: (128, 128, 3), 64: (128, 128, 3), 128: (128, 64, 3), 256: (64, 32, 2)}
_HALF_BIASED = {32: (128, 32, 3), 64: (128, 64, 3), 128: (128, 32, 3), 256: (32, 32, 2)}
_SINGLE = {32: (32, 32, 1), 64: (32, 32, 1), 128: (16, 32, 2), 256: (16, 16, 1)}


def _tile(
    tile_q: int, tile_k: int, head_dim: int, nbytes: int, capped: bool, biased: bool
) -> dict[str, int]:
    """What a program does at once; nbytes: of an element."""
    width = triton.next_power_of_2(head_dim)
    sizes = _SINGLE if nbytes == 4 else _HALF_BIASED if biased else _HALF
    rows, keys, stages = sizes[width]
    rows = min(rows, tile_q)
    if rows < 64 or (rows == 128 and width == 128):
        keys = min(keys, 32)
    elif rows == 64 or capped:
        keys = min(keys, 64)
    wide = width == 256 and (rows == 64 or biased or nbytes == 4)
    warps = 8 if rows == 128 or wide or (rows == 64 and width == 128) else 4
    tile = {"TILE_Q": tile_q, "TILE_K": tile_k, "ROWS": rows, "KEYS": min(keys, tile_k)}
    return tile | {"WIDTH": width, "STAGES": stages, "num_warps": warps}


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: small and large tiles, all kinds of scores."""
    return [
        _variant("*fp16", 64, 64, 64),
        _variant("*bf16", 64, 128, 128),
        _variant("*fp16", 128, 64, 64, "softcap"),
        _variant("*bf16", 128, 128, 64),
        _variant("*fp16", 256, 128, 128),
        _variant("*fp16", 40, 64, 32, "bias"),
        _variant("*fp32", 64, 64, 64, "bias"),
        _variant("*fp32", 128, 64, 64),
    ]


def _variant(dtype: str, head_dim: int, tile_q: int, tile_k: int, bent: str = "") -> Variant:
    """bent: "", "softcap" or "bias"."""
    signature = dict.fromkeys(POINTERS, dtype) | {"lse_ptr": "*fp32"}
    signature |= dict.fromkeys((name for name in POINTERS if name[0] in "cko"), "*i32")
    signature |= dict.fromkeys(("bits_ptr", "offsets_ptr"), "*i32")
    signature |= {"k_ptr": dtype, "out_ptr": dtype}
    signature |= dict.fromkeys(SIZES, "i32") | dict.fromkeys(("scale", "softcap"), "fp32")
    constants: dict[str, Any] = {"D": head_dim, "FLOAT32": False, "BENT": bool(bent)}
    constants |= {"CAPPED": bent == "softcap", "BIASED": bent == "bias"}
    nbytes = 4 if dtype == "*fp32" else 2
    tile = _tile(tile_q, tile_k, head_dim, nbytes, bool(bent), bent == "bias")
    num_warps = tile.pop("num_warps")
    return Variant(masked_attention_kernel, signature, constants | tile, num_warps)
