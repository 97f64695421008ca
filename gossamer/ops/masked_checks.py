"""Argument checks of `masked_attention`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.arguments import MaskedArguments, named
from gossamer.ops.checks import check_floats, check_like, check_range, check_shape, check_tensor
from gossamer.ops.kv_checks import check_plain

OP = "masked_attention"
TILES_Q = (16, 32, 64, 128)
TILES_K = (32, 64, 128)
WORD = 32  # keys of a word of bits


@dataclass(frozen=True, eq=False)
class Map:
    """The tiles of a mask as the op gets them, checked."""

    offsets: Tensor
    tiles: Tensor
    bits: Tensor
    order: Tensor

    @property
    def groups(self) -> tuple[int, int]:
        """Batches and heads: 1 where all are alike."""
        return self.order.shape[0], self.order.shape[1]

    @property
    def tile(self) -> tuple[int, int]:
        """tile_q and tile_k."""
        return self.bits.shape[1], WORD * self.bits.shape[2]


@named(MaskedArguments)
def check(a: MaskedArguments) -> None:
    """Raises TypeError or ValueError for what can be seen without looking at numbers in tensors."""
    check_heads(OP, a.q, a.k, a.v)
    q, tiles, bits, order = a.q, a.tiles, a.bits, a.order
    for name in ("offsets", "tiles", "bits", "order"):
        check_numbers(OP, name, getattr(a, name), q.device)
    if bits.dim() != 3 or bits.shape[0] < 1:
        raise ValueError(
            f"{OP}: bits has shape {list(bits.shape)}; "
            "must be [patterns, tile_q, tile_k / 32], at least 1 pattern"
        )
    _check_tile("tile_q", bits.shape[1], TILES_Q)
    _check_tile("tile_k", WORD * bits.shape[2], TILES_K)
    rows = -(-q.shape[2] // bits.shape[1])
    if order.dim() != 3 or order.shape[2] != rows:
        raise ValueError(
            f"{OP}: order has shape {list(order.shape)}; must be [batch, heads, {rows}], "
            "the rows of tiles"
        )
    check_groups(OP, q, order.shape[0], order.shape[1])
    if tiles.dim() != 2 or tiles.shape[0] != 2:
        raise ValueError(f"{OP}: tiles has shape {list(tiles.shape)}; must be [2, tiles]")
    count = order.numel()
    check_shape(OP, "offsets", a.offsets, (count + 1,), "one for each row of tiles and one more")
    if a.work is not None:
        _check_work(a.work, q.device, count)
    if a.bias is not None:
        check_bias(OP, a.bias, q, a.k)
    check_floats(OP, a.scale, a.softcap)


def _check_work(work: Any, device: torch.device, rows: int) -> None:
    check_numbers(OP, "work", work, device)
    if work.dim() != 2 or work.shape[0] < rows or work.shape[1] != 16:
        raise ValueError(
            f"{OP}: work has shape {list(work.shape)}; must be [items, 16], at least {rows} items"
        )


def check_heads(op: str, q: Any, k: Any, v: Any) -> None:
    """Shapes, dtypes, devices and strides of q, k and v."""
    check_tensor(op, "q", q)
    check_like(op, "k", k, "q", q)
    check_like(op, "v", v, "q", q)
    if q.dim() != 4:
        raise ValueError(
            f"{op}: q has {q.dim()} dimensions; must have 4: batch, heads, q_len, head_dim"
        )
    size, heads, _, head_dim = q.shape
    if not 32 <= head_dim <= 256 or head_dim % 8:
        raise ValueError(f"{op}: head_dim is {head_dim}; must be a multiple of 8, 32 to 256")
    if k.dim() != 4 or k.shape[0] != size or k.shape[3] != head_dim:
        raise ValueError(
            f"{op}: k has shape {list(k.shape)}; "
            f"must be [{size}, kv_heads, kv_len, {head_dim}], batch and head_dim as in q"
        )
    check_shape(op, "v", v, tuple(k.shape), "the shape of k")
    if k.shape[1] < 1 or heads < 1 or heads % k.shape[1]:
        raise ValueError(
            f"{op}: q has {heads} heads and k {k.shape[1]}; must be a multiple of those of k"
        )
    for name, value in (("q", q), ("k", k), ("v", v)):
        if value.stride(3) != 1:  # a copy in each call would be slow in silence
            raise ValueError(
                f"{op}: {name} has strides {list(value.stride())}; the last one must be 1"
            )


def check_groups(op: str, q: Tensor, batch: int, heads: int) -> None:
    """1, or those of q."""
    if batch not in (1, q.shape[0]):
        raise ValueError(f"{op}: batch is {batch}; must be 1 or {q.shape[0]}, the batch of q")
    if heads not in (1, q.shape[1]):
        raise ValueError(f"{op}: heads is {heads}; must be 1 or {q.shape[1]}, the heads of q")


def _check_tile(name: str, value: int, valid: tuple[int, ...]) -> None:
    if value not in valid:
        raise ValueError(f"{OP}: {name} is {value}; must be one of {', '.join(map(str, valid))}")


def check_numbers(op: str, name: str, value: Any, device: torch.device) -> None:
    """A contiguous int32 tensor."""
    check_plain(op, name, value, torch.int32, device)
    if not value.is_contiguous():
        raise ValueError(f"{op}: {name} has strides {list(value.stride())}; must be contiguous")


def check_bias(op: str, bias: Any, q: Tensor, k: Tensor) -> None:
    """Floating, on the device of q, expandable to [B, Hq, Nq, Nk]."""
    check_tensor(op, "bias", bias)
    if bias.device != q.device:
        raise ValueError(f"{op}: bias is on {bias.device}; must be on {q.device}, the device of q")
    full = (*q.shape[:3], k.shape[2])
    padded = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    if bias.dim() > 4 or any(a not in (1, b) for a, b in zip(padded, full, strict=True)):
        raise ValueError(
            f"{op}: bias has shape {list(bias.shape)}; must expand to {list(full)}, "
            "batch, heads, q_len and kv_len"
        )


@named(MaskedArguments)
def check_map(a: MaskedArguments) -> None:
    """The numbers of a map on the CPU; ValueError where it names no such tile, pattern or row."""
    if a.offsets.device.type != "cpu":
        return
    columns, kinds = a.tiles
    order, tile_k, kv_len = a.order, WORD * a.bits.shape[2], a.k.shape[2]
    check_offsets(OP, "offsets", a.offsets, a.tiles.shape[1], "tiles")
    check_range(OP, "a column", columns, 0, -(-kv_len // tile_k))
    check_range(OP, "a kind", kinds, -1, a.bits.shape[0])
    ragged = kinds[(columns + 1).long() * tile_k > kv_len]
    if (ragged < 0).any():
        raise ValueError(
            f"{OP}: a tile that reaches beyond the {kv_len} keys is full; must be partial"
        )
    check_range(OP, "a row of order", order, 0, order.numel())
    if order.unique().numel() != order.numel():
        raise ValueError(f"{OP}: order names a row twice; must name every row of tiles once")


def check_offsets(op: str, name: str, offsets: Tensor, end: int, what: str) -> None:
    """From 0 up, never down, to `end` at most."""
    if offsets[0] != 0 or (offsets.diff() < 0).any() or offsets[-1] > end:
        raise ValueError(
            f"{op}: {name} are from {int(offsets[0])} to {int(offsets[-1])}; must begin with 0, "
            f"never fall and end with at most {end}, the number of {what}"
        )
