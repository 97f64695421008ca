"""Every way of ours to compute a point: kernels, tile sizes, and how long rows are cut."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.masks import Mask, TileMap
from gossamer.masks.work import piece_limit, work_list
from gossamer.ops import masked_attention
from gossamer.ops.masked_attention import CUDA_TILES

# By backend.
TILES = {
    "cuda": CUDA_TILES,
    "triton": ((64, 64), (128, 64)),
}
LEAST_KEYS = (128, 256, 512)  # of a piece of a row


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way; `call(q, k, v)` gives out. facts: for the record."""

    backend: str
    name: str
    call: Callable[[Tensor, Tensor, Tensor], Tensor]
    facts: dict[str, float]


def candidates(mask: Mask, shape: tuple[int, int, int, int], device: str) -> Iterator[Candidate]:
    """All of them, for q, k and v of this shape."""
    for backend, tiles in TILES.items():
        for tile in tiles:
            yield from _with_tile(mask, shape, backend, tile, device)


def _with_tile(
    mask: Mask, shape: tuple[int, int, int, int], backend: str, tile: tuple[int, int], device: str
) -> Iterator[Candidate]:
    batch, heads, n, head_dim = shape
    started = time.perf_counter()
    tiles = TileMap.build(mask, n, n, tile, device)
    torch.cuda.synchronize()
    build_ms = (time.perf_counter() - started) * 1e3
    replicas = batch // tiles.batch * (heads // tiles.heads)
    for work in _works(tiles, replicas, device) if backend == "cuda" else (None,):
        pieces = tiles.order.numel() if work is None else len(work)
        facts = _facts(tiles) | {"pieces": pieces, "build_ms": build_ms}
        name = f"{backend} {tile[0]}x{tile[1]}"
        if work is not None and pieces > tiles.order.numel():
            name += f" limit={int((work[:, 2] - work[:, 1]).max())}"
        yield Candidate(backend, name, _caller(tiles, work, head_dim**-0.5, backend), facts)


def _works(tiles: TileMap, replicas: int, device: str) -> list[Tensor]:
    """Whole rows, and rows in pieces of several lengths, where that makes a difference."""
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    limits = [piece_limit(tiles, replicas, sms, least) for least in LEAST_KEYS]
    works = [work_list(tiles, limit) for limit in (1 << 30, *limits)]
    return list({len(work): work for work in works}.values())


def _facts(tiles: TileMap) -> dict[str, float]:
    counts = tiles.counts()
    rows = tiles.offsets.diff()
    return {
        "density": counts.density,
        "full_tiles": counts.full,
        "partial_tiles": counts.partial,
        "rows": tiles.order.numel(),
        "longest_row": int(rows.max()),
        "patterns": len(tiles.bits),
        "map_bytes": tiles.nbytes,
    }


def _caller(
    tiles: TileMap, work: Tensor | None, scale: float, backend: str
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    lists = (tiles.offsets, tiles.tiles, tiles.bits, tiles.order, work)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return masked_attention(q, k, v, *lists, None, scale, 0.0, False, backend=backend)[0]

    return call
