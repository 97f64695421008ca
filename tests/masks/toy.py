"""A mask that follows the recipe of docs/masks.md, and is no part of the package."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.masks import Mask
from gossamer.masks.checks import whole
from gossamer.masks.shapes import kinds


@dataclass(frozen=True)
class Checkerboard(Mask):
    """Blocks of `size` queries and keys see each other where their numbers are both even or odd."""

    size: int = 16

    def __post_init__(self) -> None:
        whole("Checkerboard", "size", self.size, 1)

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q // self.size + k // self.size) % 2 == 0

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        row, column = q0 // self.size, k0 // self.size
        single = (row == (q1 - 1) // self.size) & (column == (k1 - 1) // self.size)
        even = (row + column) % 2 == 0
        return kinds(empty=single & ~even, full=single & even)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return (q0 // self.size + k0 // self.size) % 2, q0 % self.size, k0 % self.size


def rule(size: int, i: int, j: int) -> bool:
    """The same, entry by entry."""
    return i // size % 2 == j // size % 2


def checkerboard(n: int, size: int = 16) -> Mask:
    """blocks that see every second block"""
    return Checkerboard(size)
