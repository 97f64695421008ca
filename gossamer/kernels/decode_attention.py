"""Triton launcher of gossamer.ops.decode_attention: shares of the cache, then merged.

The grid depends on shapes alone; what a sequence has of its share is found on the device.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from gossamer.kernels.arguments import DecodeArguments, named
from gossamer.kernels.decode_codes import code_words, compiled_values, has_codes, is_coded
from gossamer.kernels.decode_merge import merge
from gossamer.kernels.decode_split import SIZES, decode_attention_kernel
from gossamer.kernels.variants import Variant

PROGRAMS = 4 * 132  # wanted: four for each multiprocessor of a large GPU
MAX_SPLITS = 128
MAX_TOKENS = 1 << 30  # of a sequence, so that sums of two positions are 32 bits wide
BLOCK_TOKENS = 32
# The interpreter multiplies the bits of bfloat16 as if they were integers.
_INTERPRETED = triton.knobs.runtime.interpret

POINTER_NAMES = (
    *("q_ptr", "k_ptr", "v_ptr", "table_ptr", "lens_ptr"),
    *("dense_k_ptr", "dense_v_ptr", "dense_table_ptr", "k_words_ptr", "v_words_ptr"),
    *("stats_ptr", "sums_ptr"),
)


@named(DecodeArguments)
def decode_attention(a: DecodeArguments) -> tuple[Tensor, Tensor]:
    """The launcher; arguments are those of the op, already checked."""
    pool, window = (a.k_blocks, a.v_blocks, a.page_table), ""
    dense = pool  # never read: without a window the kernel is compiled so
    if a.dense_k is not None and a.dense_v is not None and a.dense_table is not None:
        dense, window = (a.dense_k, a.dense_v, a.dense_table), a.dense_values
    given = (a.q, *pool, a.seq_lens, *dense)
    tensors = tuple(t if t.stride(-1) == 1 else t.contiguous() for t in given)
    capacity = min(a.page_table.shape[1], dense[2].shape[1]) * a.page_size
    head_dim, device = a.q.shape[-1], a.q.device
    words = tuple(
        code_words(values, scales, head_dim, device) if has_codes(keep, values) else a.seq_lens
        for keep, values, scales in (
            (a.k_keep, a.k_values, a.k_scales),
            (a.v_keep, a.v_values, a.v_scales),
        )
    )
    limits = _limits(capacity, a.window, a.sink, a.sliding)
    formats = {
        **_format("K", head_dim, a.k_keep, a.k_values, a.k_scales),
        **_format("V", head_dim, a.v_keep, a.v_values, a.v_scales),
        "WINDOW": window,
        "CAPPED": a.softcap != 0,
    }
    with torch.cuda.device_of(a.q):
        return _launch(
            tensors, words, a.page_size // BLOCK_TOKENS, limits, (a.scale, a.softcap), formats
        )


def _launch(
    tensors: tuple[Tensor, ...],
    words: tuple[Tensor, ...],
    per_page: int,
    limits: tuple[int, ...],
    floats: tuple[float, float],
    formats: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Numbers as the kernel has them; the last dimensions of all tensors have stride 1."""
    q, k, v, table, _, dense_k, dense_v, dense_table = tensors
    sequences, q_len, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    coded = is_coded(formats["K_VALUES"]) or is_coded(formats["V_VALUES"])
    tile = _tile(q_len * group, head_dim, q.dtype, coded)
    tiles = triton.cdiv(q_len * group, tile["ROWS"])
    splits = _splits(sequences * kv_heads * tiles, limits[0] // BLOCK_TOKENS)
    rows = (sequences, kv_heads, splits, q_len * group)
    stats = torch.empty((*rows, 2), dtype=torch.float32, device=q.device)
    sums = torch.empty((*rows, head_dim), dtype=torch.float32, device=q.device)
    stride = lambda pool: (pool.stride(0) // 16, pool.stride(1) // 16)  # noqa: E731
    decode_attention_kernel[(sequences * kv_heads * tiles * splits,)](
        *(*tensors, *words, stats, sums),
        *(*q.stride()[:3], *stride(k), *stride(v), table.stride(0)),
        *(*stride(dense_k), *stride(dense_v), dense_table.stride(0)),
        *(min(k.shape[0], v.shape[0]), min(dense_k.shape[0], dense_v.shape[0])),
        *(kv_heads, group, q_len, splits, tiles, per_page, *limits, *floats),
        D=head_dim, FLOAT32=_INTERPRETED and q.dtype == torch.bfloat16, **formats, **tile,
    )  # fmt: skip
    return merge(stats, sums, q, splits, group)


def _format(
    prefix: str, head_dim: int, keep: int | None, values: str, scales: str
) -> dict[str, Any]:
    """Compile-time values of a format; STORED is 0 for a dense one."""
    if has_codes(keep, values):
        values = compiled_values(values, head_dim)
    stored = 0 if keep is None else triton.cdiv(keep, 8) * 8
    return {f"{prefix}_STORED": stored, f"{prefix}_VALUES": values, f"{prefix}_SCALES": scales}


def _limits(capacity: int, window: int, sink: int, sliding: int) -> tuple[int, int, int, int]:
    """The same within 32 bits, window and sink in blocks; none is sliding over everything."""
    most = MAX_TOKENS // BLOCK_TOKENS - 1
    blocks = (min(window // BLOCK_TOKENS, most), min(sink // BLOCK_TOKENS, most))
    return min(capacity, MAX_TOKENS), *blocks, min(sliding, MAX_TOKENS) or MAX_TOKENS


def _tile(rows: int, head_dim: int, dtype: torch.dtype, coded: bool) -> dict[str, int]:
    """Rows of a program, all of them where registers allow, tokens of a step, and warps.

    coded: dense codes, whose addresses take registers.
    """
    width = max(triton.next_power_of_2(head_dim), 16)
    most = 128 if width <= 128 else 32
    if dtype == torch.float32:
        most = 64 if width <= 64 else 16
    rows = min(max(triton.next_power_of_2(rows), 16), most)
    if rows == 64 and width == 128:
        rows = 128  # Triton then gives every warp rows of its own, which takes fewer registers
    tokens = 16 if width == 256 or (coded and width == 128) else BLOCK_TOKENS
    return {"ROWS": rows, "TOKENS": tokens, "num_warps": 4 if width < 64 else 8}


def _splits(programs: int, blocks: int) -> int:
    """Shares of a sequence, by shapes alone: enough for the GPU, and 2 blocks or more for each."""
    return max(min(PROGRAMS // max(programs, 1), (blocks + 1) // 2, MAX_SPLITS), 1)


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: every format of values, small and large tiles."""
    return [
        _variant("*fp16", 128, 8, ("fp16", "none", 40), ("fp16", "none", 40), "fp16"),
        _variant("*bf16", 128, 4, ("int8", "row", 40), ("fp8_e4m3", "row", None), "bf16"),
        _variant("*fp16", 128, 8, ("int4", "channel", None), ("int4", "group", None), "fp16"),
        _variant("*fp16", 80, 32, ("int3", "channel", 24), ("int2", "row", 24), ""),
        _variant(
            "*fp16", 128, 4, ("8x16+4x48+3x40+2x24", "row", None), ("int3", "group", None), "fp16"
        ),
        _variant("*bf16", 80, 8, ("int8", "channel", None), ("4x40+2x32+0x8", "none", None), ""),
        _variant("*fp16", 128, 128, ("fp16", "none", None), ("int4", "row", 40), "fp16"),
        _variant("*bf16", 256, 16, ("bf16", "none", None), ("bf16", "none", 40), ""),
        _variant("*fp32", 64, 64, ("fp32", "none", 24), ("fp32", "none", None), "fp32"),
        _variant("*fp32", 128, 16, ("fp32", "none", None), ("int8", "group", None), ""),
    ]


def _variant(
    q: str, head_dim: int, rows: int, k: tuple[str, str, int | None],
    v: tuple[str, str, int | None], window: str,
) -> Variant:  # fmt: skip
    """With formats as (values, scales, keep)."""
    pointers = dict.fromkeys(POINTER_NAMES, "*u8") | {"q_ptr": q}
    pointers |= dict.fromkeys(
        ("table_ptr", "lens_ptr", "dense_table_ptr", "k_words_ptr", "v_words_ptr"), "*i32"
    )
    pointers |= dict.fromkeys(("stats_ptr", "sums_ptr"), "*fp32")
    numbers = dict.fromkeys(SIZES, "i32") | dict.fromkeys(("scale", "softcap"), "fp32")
    coded = has_codes(k[2], k[0]) or has_codes(v[2], v[0])
    tile = _tile(rows, head_dim, torch.float32 if q == "*fp32" else torch.float16, coded)
    num_warps = tile.pop("num_warps")
    constants = _format("K", head_dim, k[2], k[0], k[1]) | _format("V", head_dim, v[2], v[0], v[1])
    constants |= {"D": head_dim, "WINDOW": window, "CAPPED": bool(window), "FLOAT32": False}
    return Variant(decode_attention_kernel, pointers | numbers, constants | tile, num_warps)
