"""What to measure of masked attention: masks, sizes, and which settings of ours and of peers."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gossamer.masks import Mask, named

HEADS = 12
# Those that STOF measured, with its parameters; every one of them lets a query see itself.
STOF = ("stof-sliding", "stof-dilated", "stof-longformer", "stof-bigbird")
# Others: dense ones, far blocks, long rows beside short ones, many patterns.
OTHERS = ("full", "causal", "bigbird", "strided", "streaming", "documents", "prefix-lm")


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
        """Of both products, for what the mask shows."""
        pairs = density * self.n * self.n
        return int(4 * self.batch * self.heads * self.head_dim * pairs)

    def build_mask(self) -> Mask:
        return named(self.mask, self.n)


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


def quick() -> Iterator[Point]:
    """A glance: does everything run?"""
    for mask in ("stof-longformer", "causal"):
        yield Point(mask, 2, 512, heads=4, flex=True, sdpa=True)


PLANS = {"headline": headline, "shapes": shapes, "quick": quick}
