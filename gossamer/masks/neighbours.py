"""Random entries of the block beside the diagonal one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.masks.base import Mask
from gossamer.masks.hashing import hashed
from gossamer.masks.shapes import kinds


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
        beside = self.neighbour(q // self.block) == k // self.block
        # Up to 2^31 - 1, so that a share of 1 fits into int32, too.
        return beside & (hashed(self.seed + 1, q, k) <= round(self.share * 2**31) - 1)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        first, last = q0 // self.block, (q1 - 1) // self.block
        empty = (k0 // self.block > last + 1) | ((k1 - 1) // self.block < first - 1)
        return kinds(empty, torch.zeros_like(empty))
