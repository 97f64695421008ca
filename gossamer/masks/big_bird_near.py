"""STOF's BigBird: its random entries stay next to the diagonal."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.masks.base import Mask
from gossamer.masks.checks import whole
from gossamer.masks.shapes import Composite, kinds
from gossamer.masks.sliding import Sliding
from gossamer.masks.tokens import Keys, Queries, Ranges, TokenSet, merged

MIX = 0x45D9F3B  # a common 32-bit mix: after two rounds each input bit moves each output bit
STEP = 0x3C6EF35F  # odd; sets places apart


@dataclass(frozen=True, init=False)
class BigBirdNear(Composite):
    """`window` keys on either side, global tokens, and random entries of one neighbouring block.

    For each block of queries the block before or after it, by chance; of its entries a random
    `share`. There is no far block, so that little is read: STOF's benchmark calls this BigBird.
    """

    window: int
    tokens: Ranges
    block: int
    share: float
    seed: int

    def __init__(
        self,
        window: int = 32,
        tokens: TokenSet = range(32),
        block: int = 32,
        share: float = 0.1,
        seed: int = 0,
    ) -> None:
        whole("BigBirdNear", "block", block, 1)
        whole("BigBirdNear", "seed", seed, 0)
        whole("BigBirdNear", "window", window, 0)
        if not 0 <= share <= 1:
            raise ValueError(f"BigBirdNear: share is {share}; must be 0 to 1")
        chosen = merged("BigBirdNear", "tokens", tokens)
        values = {"window": window, "tokens": chosen, "block": block}
        for name, value in {**values, "share": share, "seed": seed}.items():
            object.__setattr__(self, name, value)
        band = Sliding.symmetric(window)
        near = Neighbours(block, float(share), seed)
        self.compose(band | Keys(chosen) | Queries(chosen) | near)


@dataclass(frozen=True)
class Neighbours(Mask):
    """A random `share` of the entries of one neighbouring block for each block of queries.

    The neighbour is the block before or after, by chance; block 0 takes the one after it. Where
    the neighbour lies beyond the last key, there is none.
    """

    block: int
    share: float
    seed: int

    def neighbour(self, row: Tensor) -> Tensor:
        after = ((hashed(self.seed, row) & 1) == 1) | (row == 0)
        return row + (2 * after.to(row.dtype) - 1)

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = self.neighbour(q // self.block) == k // self.block
        # Up to 2^31 - 1, so that a share of 1 fits into int32, too.
        return near & (hashed(self.seed + 1, q, k) <= round(self.share * 2**31) - 1)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        first, last = q0 // self.block, (q1 - 1) // self.block
        empty = (k0 // self.block > last + 1) | ((k1 - 1) // self.block < first - 1)
        return kinds(empty, torch.zeros_like(empty))


def hashed(seed: int, *places: Tensor) -> Tensor:
    """31 random bits (int32) for each place: the same on every device, eager and compiled.

    Products are modulo 2^32, which int32 does everywhere; shifts are made logical by a mask.
    """
    state: Tensor | int = seed & 0x7FFFFFFF
    for place in places:
        state = _mixed(place.to(torch.int32) * STEP ^ state)
    assert isinstance(state, Tensor), "there is at least one place"
    return state & 0x7FFFFFFF


def _mixed(x: Tensor) -> Tensor:
    for _ in range(2):
        x = (x ^ (x >> 16 & 0xFFFF)) * MIX
    return x ^ (x >> 16 & 0xFFFF)
