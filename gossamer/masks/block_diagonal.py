"""Blocks of equal size that do not see each other."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.masks.base import Mask
from gossamer.masks.checks import whole
from gossamer.masks.shapes import kinds


@dataclass(frozen=True)
class BlockDiagonal(Mask):
    """Query i sees the keys of its own block: those with the same index // block."""

    block: int

    def __post_init__(self) -> None:
        whole("BlockDiagonal", "block", self.block, 1)

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return q // self.block == k // self.block

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        top, bottom = q0 // self.block, (q1 - 1) // self.block
        left, right = k0 // self.block, (k1 - 1) // self.block
        empty = (left > bottom) | (right < top)
        return kinds(empty, full=(top == right) & (bottom == left))

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return q0 - k0, q0 % self.block
