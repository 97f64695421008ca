"""What is measured of masked attention: points, our candidates at each, and the op's own suite.

`SUITE` is for `gossamer check-op`: one tile size against SDPA with the mask as a tensor, at masks
that leave most of the pairs out. `python -m benchmarks.suites.masked_attention` times all kernels,
tile sizes and peers, also where SDPA wins.
"""

import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.calls import first_result
from gossamer.bench.suite import Case, Suite
from gossamer.masks import (
    Causal,
    Mask,
    PrefixLM,
    Sliding,
    Streaming,
    Strided,
    TileMap,
    named,
    per_head,
)
from gossamer.masks.work import piece_limit, work_list
from gossamer.ops import OPS, masked_attention
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.masked_attention import CUDA_TILES

OP = "masked_attention"
HEADS = 12
# Those that STOF measured, with its parameters; every one of them lets a query see itself.
STOF = ("stof-sliding", "stof-dilated", "stof-longformer", "stof-bigbird")
# Others: dense ones, far blocks, long rows next to short ones, many patterns.
OTHERS = ("full", "causal", "bigbird", "strided", "streaming", "documents", "prefix-lm")
# Families beside the presets, by length and heads: a prefix that everybody sees, packed documents,
# and heads that look in different ways.
FAMILIES: dict[str, Callable[[int, int], Mask]] = {
    "prefix-lm-quarter": lambda n, heads: PrefixLM(n // 4),
    "documents-8": lambda n, heads: named("documents", n, count=8),
    "documents-32": lambda n, heads: named("documents", n, count=32),
    "heads-mixed": lambda n, heads: per_head(
        [_HEADS[i * len(_HEADS) // heads](n) for i in range(heads)]
    ),
}
_HEADS: tuple[Callable[[int], Mask], ...] = (
    lambda n: Sliding.causal(256),
    lambda n: Streaming(4, 508),
    lambda n: Causal() & Strided(64),
    lambda n: Causal(),
)
TILES = {"cuda": CUDA_TILES, "triton": ((64, 64), (128, 64))}
LEAST_KEYS = (128, 256, 512)  # of a piece of a row
SUITE_TILE, SUITE_LEAST_KEYS = (64, 64), 256
# Weights are rounded to 16 bits for the second GEMM; sums are of up to 4,096 of them.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


@dataclass(frozen=True)
class Point:
    """A mask over [batch, heads, n, head_dim]. flex, sdpa: also time those."""

    mask: str
    batch: int
    n: int
    head_dim: int = 64
    heads: int = HEADS
    dtype: torch.dtype = torch.float16
    flex: bool = False
    sdpa: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.heads, self.n, self.head_dim

    @property
    def bytes(self) -> int:
        """Of q, k, v and out, each once."""
        return 4 * self.batch * self.heads * self.n * self.head_dim * self.dtype.itemsize

    def flops(self, density: float) -> int:
        """Of both GEMMs, for what the mask shows."""
        pairs = density * self.n * self.n
        return int(4 * self.batch * self.heads * self.head_dim * pairs)

    def build_mask(self) -> Mask:
        return mask_named(self.mask, self.n, self.heads)


def mask_named(name: str, n: int, heads: int) -> Mask:
    """One of the families above, or a preset."""
    return FAMILIES[name](n, heads) if name in FAMILIES else named(name, n)


def headline() -> Iterator[Point]:
    """The points that are published against FlexAttention."""
    for batch in (1, 16):
        for n in (1024, 4096):
            for mask in STOF:
                yield Point(mask, batch, n, flex=True, sdpa=True)
        for mask in ("causal", "full"):
            yield Point(mask, batch, 4096, sdpa=True)


def shapes() -> Iterator[Point]:
    """More, on which the selector is fitted and judged; in an order that can be cut short."""
    points = [
        Point(mask, batch, n, head_dim, sdpa=mask in ("full", "causal"))
        for mask in (*STOF, *OTHERS)
        for batch in (1, 8, 16)
        for n in (128, 512, 1024, 2048, 4096, 16384)
        for head_dim in (64, 128)
        if batch * n <= 65536
    ]
    known = {(p.mask, p.shape) for p in headline()}
    random.Random(0).shuffle(points)
    # Where SDPA is a candidate comes first: its lines are few.
    points.sort(key=lambda p: not (p.sdpa and p.batch != 8 and 512 <= p.n <= 4096))
    yield from (p for p in points if (p.mask, p.shape) not in known)


def families() -> Iterator[Point]:
    """Masks of other kinds, against FlexAttention."""
    for batch, heads, n, head_dim in (
        (4, 16, 4096, 128),
        (1, HEADS, 4096, 64),
        (16, HEADS, 1024, 64),
    ):
        for mask in FAMILIES:
            yield Point(mask, batch, n, head_dim, heads, flex=True, sdpa=True)


def quick() -> Iterator[Point]:
    """A glance: does everything run?"""
    for mask in ("stof-longformer", "causal"):
        yield Point(mask, 2, 512, heads=4, flex=True, sdpa=True)


POINTS = {"headline": headline, "shapes": shapes, "families": families, "quick": quick}


@dataclass(frozen=True, eq=False)
class Candidate:
    """Kernel, tile size and pieces; `call(q, k, v)` gives out. facts: for the record."""

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
    n, head_dim = shape[2:]
    started = time.perf_counter()
    tiles = TileMap.build(mask, n, n, tile, device)
    torch.cuda.synchronize()
    build_ms = (time.perf_counter() - started) * 1e3
    for work in _works(tiles, shape) if backend == "cuda" else (None,):
        pieces = tiles.order.numel() if work is None else len(work)
        facts = _facts(tiles) | {"pieces": pieces, "build_ms": build_ms}
        name = f"{backend} {tile[0]}x{tile[1]}"
        if work is not None and pieces > tiles.order.numel():
            name += f" limit={int((work[:, 2] - work[:, 1]).max())}"
        yield Candidate(backend, name, _caller(tiles, work, head_dim**-0.5, backend), facts)


def _works(tiles: TileMap, shape: tuple[int, int, int, int]) -> list[Tensor]:
    """Whole rows, and rows in pieces of several lengths, where that makes a difference."""
    works = [work_list(tiles, 1 << 30), *(_pieces(tiles, shape, least) for least in LEAST_KEYS)]
    return list({len(work): work for work in works}.values())


def _pieces(tiles: TileMap, shape: tuple[int, int, int, int], least: int) -> Tensor:
    """Rows cut into pieces of `least` keys or more, so that all SMs have work."""
    sms = torch.cuda.get_device_properties(tiles.offsets.device).multi_processor_count
    replicas = shape[0] // tiles.batch * (shape[1] // tiles.heads)
    return work_list(tiles, piece_limit(tiles, replicas, sms, least))


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


def _oracle(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    return OPS[OP].reference(q.double(), k.double(), v.double(), *rest)[0]


def case_of(
    device: str,
    name: str,
    batch: int,
    n: int,
    peer: str = "eager",
    dtypes: Collection[torch.dtype] | None = None,
) -> Case:
    """A mask at heads of 64 by one tile size. peer: what SDPA with the mask is called."""
    point = Point(name, batch, n)
    mask = point.build_mask()

    def make_args(dtype: torch.dtype, device: str) -> tuple[Any, ...]:
        q, k, v = (torch.randn(point.shape, dtype=dtype, device=device) for _ in range(3))
        tiles = TileMap.build(mask, n, n, SUITE_TILE, device)
        work = None
        if device == "cuda":
            work = _pieces(tiles, point.shape, SUITE_LEAST_KEYS)
        lists = (tiles.offsets, tiles.tiles, tiles.bits, tiles.order, work, None)
        return (q, k, v, *lists, point.head_dim**-0.5, 0.0, False)

    def eager(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Callable[[], Tensor]:
        dense = mask.dense(n, n, q.device)
        return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=dense)

    seen = TileMap.build(mask, n, n, SUITE_TILE, "cpu").counts().density
    return Case(
        shape=point.shape,
        make_args=make_args,
        peers={},
        adapted={peer: eager},
        bytes=lambda q, *_: 4 * q.numel() * q.element_size(),
        flops=point.flops(seen),
        variant=f"mask={name}",
        wrap=first_result,
        dtypes=dtypes or (FLOAT_DTYPES if device == "cpu" else (torch.float16, torch.bfloat16)),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield case_of(device, "stof-longformer", 1, 256)
        return
    for batch, n in ((1, 1024),) if device == "cpu" else ((1, 1024), (16, 1024), (16, 4096)):
        for name in STOF:
            yield case_of(device, name, batch, n)


SUITE = Suite(OP, _cases, oracle=_oracle, tolerance=TOLERANCE)
