"""BigBird: a band, global tokens, and random blocks anywhere."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from gossamer.masks.base import Device, Mask
from gossamer.masks.checks import same_device, whole
from gossamer.masks.shapes import Composite, kinds, with_attributes
from gossamer.masks.sliding import Sliding
from gossamer.masks.tokens import Keys, Queries, Ranges, TokenSet, merged


@dataclass(frozen=True, init=False)
class BigBird(Composite):
    """`window` keys on either side, global tokens, and `random` blocks for each block of queries.

    Random blocks are `block` x `block`, lie outside the band and the global tokens, and are
    those of `seed` (Zaheer et al., 2020). The mask is bound to n queries and n keys.
    """

    n: int
    window: int
    tokens: Ranges
    block: int
    random: int
    seed: int

    def __init__(
        self,
        n: int,
        window: int = 64,
        tokens: TokenSet = range(64),
        block: int = 64,
        random: int = 3,
        seed: int = 0,
    ) -> None:
        whole("BigBird", "n", n, 1)
        whole("BigBird", "block", block, 1)
        whole("BigBird", "random", random, 0)
        whole("BigBird", "seed", seed, 0)
        whole("BigBird", "window", window, 0)
        chosen = merged("BigBird", "tokens", tokens)
        values = {"n": n, "window": window, "tokens": chosen}
        for name, value in {**values, "block": block, "random": random, "seed": seed}.items():
            object.__setattr__(self, name, value)
        # Blocks that the band or the global tokens cover wholly would be drawn for nothing.
        covered = tuple(range(-(-t.start // block), t.stop // block) for t in chosen)
        far = RandomBlocks(n, block, random, -(-window // block), covered, seed)
        self.compose(Sliding.symmetric(window) | Keys(chosen) | Queries(chosen) | far)
        self.check(n, n)


@dataclass(frozen=True)
class RandomBlocks(Mask):
    """`count` blocks of keys for each block of queries; different ones, as far as there are.

    Blocks up to `reach` from the diagonal and those in `skip` are left to other masks. Python's
    generator draws them, so that a seed means the same everywhere.
    """

    n: int
    block: int
    count: int
    reach: int
    skip: Ranges
    seed: int
    # int32 [blocks of queries * count]: blocks of keys, -1 where there are not enough. One
    # dimension, since FlexAttention does not compile a look-up at [row, 0].
    table: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        blocks = -(-self.n // self.block)
        rows = [self._drawn(row, blocks, draw) for row in range(blocks)]
        object.__setattr__(self, "table", torch.tensor(rows, dtype=torch.int32).flatten())

    def _drawn(self, row: int, blocks: int, draw: random.Random) -> list[int]:
        near = range(max(0, row - self.reach), min(blocks, row + self.reach + 1))
        taken = merged("RandomBlocks", "skip", (*self.skip, near))
        free = blocks - sum(len(part) for part in taken)
        found = draw.sample(range(free), min(self.count, free))
        return [_beyond(place, taken) for place in found] + [-1] * (self.count - len(found))

    @property
    def lengths(self) -> tuple[int, int]:
        return self.n, self.n

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        same_device("BigBird", self.table, q)
        row, column = q // self.block, k // self.block
        found = row < 0  # nothing; FlexAttention refuses constants
        for i in range(self.count):
            found = found | (self.table[row * self.count + i] == column)
        return found

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        """Exact: counts the drawn blocks among those that a box touches."""
        first, last = q0 // self.block, (q1 - 1) // self.block
        left, right = k0 // self.block, (k1 - 1) // self.block
        found = torch.zeros_like(first + left)
        for row in range(int((last - first).max()) + 1):
            inside = first + row <= last
            start = torch.where(inside, first + row, 0) * self.count
            for i in range(self.count):
                column = torch.where(inside, self.table[start + i], -1)
                found += (column >= left) & (column <= right)
        return kinds(found == 0, full=found == (last - first + 1) * (right - left + 1))

    def to(self, device: Device) -> Self:
        clone: Self = with_attributes(self, table=self.table.to(device))
        return clone


def _beyond(place: int, taken: Iterable[range]) -> int:
    """The block with `place` free blocks before it."""
    for part in taken:
        if place >= part.start:
            place += len(part)
    return place
