"""Argument checks of `prefill_attention`."""

import math
from typing import Any

from torch import Tensor

from gossamer.kernels.arguments import PrefillArguments, named
from gossamer.ops.checks import check_like, check_range, check_shape, check_tensor
from gossamer.ops.kv_block import BLOCK_TOKENS
from gossamer.ops.masked_checks import check_numbers
from gossamer.ops.prefill_reference import far_rows

OP = "prefill_attention"
TILE = 128  # queries
COLUMNS = 7  # of `sequences`
UNLIMITED = 1 << 30


@named(PrefillArguments)
def check(a: PrefillArguments) -> None:
    """Raises TypeError or ValueError for what can be seen without looking at numbers in tensors."""
    check_tensor(OP, "q", a.q)
    if a.q.dim() != 3:
        raise ValueError(
            f"{OP}: q has {a.q.dim()} dimensions; must have 3: tokens, heads, head_dim"
        )
    _check_pair("k", "v", a.k, a.v, a.q)
    heads, kv_heads = a.q.shape[1], a.k.shape[1]
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise ValueError(
            f"{OP}: q has {heads} heads and k {kv_heads}; must be a multiple of those of k"
        )
    if (a.far_k is None) != (a.far_v is None):
        raise ValueError(f"{OP}: far_k and far_v must be given together")
    if a.far_k is not None:
        _check_pair("far_k", "far_v", a.far_k, a.far_v, a.q)
        shape = (a.far_k.shape[0], kv_heads, a.q.shape[2])
        check_shape(OP, "far_k", a.far_k, shape, "heads as in k")
    for name, value in (("q", a.q), ("k", a.k), ("v", a.v), ("far_k", a.far_k), ("far_v", a.far_v)):
        if value is not None and value.stride(2) != 1:  # a copy would be slow in silence
            raise ValueError(
                f"{OP}: {name} has strides {list(value.stride())}; the last one must be 1"
            )
    _check_plan(a)
    if not (math.isfinite(a.scale) and a.scale > 0):
        raise ValueError(f"{OP}: scale is {a.scale}; must be finite and > 0")
    _check_tokens("window", a.window, -1, BLOCK_TOKENS)
    _check_tokens("sink", a.sink, 0, BLOCK_TOKENS)
    _check_tokens("sliding", a.sliding, 0, 1)


def _check_pair(k_name: str, v_name: str, k: Any, v: Any, q: Tensor) -> None:
    for name, value in ((k_name, k), (v_name, v)):
        check_like(OP, name, value, "q", q)
    if k.dim() != 3 or k.shape[2] != q.shape[2]:
        raise ValueError(
            f"{OP}: {k_name} has shape {list(k.shape)}; must be [keys, kv_heads, {q.shape[2]}], "
            "head_dim as in q"
        )
    check_shape(OP, v_name, v, tuple(k.shape), f"the shape of {k_name}")


def _check_plan(a: PrefillArguments) -> None:
    for name, value, columns in (("sequences", a.sequences, COLUMNS), ("tiles", a.tiles, 2)):
        check_numbers(OP, name, value, a.q.device)
        if value.dim() != 2 or value.shape[1] != columns:
            raise ValueError(
                f"{OP}: {name} has shape {list(value.shape)}; must be [{name}, {columns}]"
            )


def _check_tokens(name: str, value: int, least: int, unit: int) -> None:
    if not least <= value < UNLIMITED or (value > 0 and value % unit):
        what = f"a multiple of {unit}, " if unit > 1 else ""
        none = ", or -1 for none" if least < 0 else ""
        raise ValueError(f"{OP}: {name} is {value}; must be {what}0 to {UNLIMITED - 1}{none}")


@named(PrefillArguments)
def check_plan_values(a: PrefillArguments) -> None:
    """The numbers of a plan on the CPU; ValueError where it names no such rows or tiles."""
    if a.sequences.device.type != "cpu":
        return
    tiles: list[tuple[int, int]] = []
    for s, (row, queries, start, near_row, near_rows, edge, far_row) in enumerate(
        a.sequences.tolist()
    ):
        _check_rows("query", row, queries, a.q.shape[0], least=1)
        if start < 0 or not 0 <= edge <= start:
            raise ValueError(
                f"{OP}: sequence {s} begins at {start} with edge {edge}; "
                "must be 0 or more, and an edge from 0 to there"
            )
        sink = a.sink if a.window >= 0 else 0
        wanted = min(sink, edge) + start + queries - edge
        if near_rows != wanted:
            raise ValueError(f"{OP}: sequence {s} has {near_rows} near rows; must be {wanted}")
        _check_rows("near", near_row, near_rows, a.k.shape[0])
        far = far_rows(start + queries, a.window, a.sink)
        _check_rows("far", far_row, far, 0 if a.far_k is None else a.far_k.shape[0])
        tiles += [(s, i) for i in range(-(-queries // TILE))]
    check_range(OP, "a sequence of tiles", a.tiles[:, 0], 0, len(a.sequences), "sequences")
    if sorted(map(tuple, a.tiles.tolist())) != tiles:
        raise ValueError(f"{OP}: tiles must name every {TILE} queries of every sequence once")


def _check_rows(name: str, row: int, rows: int, end: int, least: int = 0) -> None:
    if rows < least or (rows and not 0 <= row <= end - rows):
        raise ValueError(
            f"{OP}: {name} rows are {row} to {row + rows - 1}; must be some of the {end} there are"
        )
