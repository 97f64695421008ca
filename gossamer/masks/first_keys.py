"""The first keys, for every query."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.masks.base import Mask
from gossamer.masks.checks import whole
from gossamer.masks.shapes import kinds


@dataclass(frozen=True)
class FirstKeys(Mask):
    """Every query sees the first `count` keys, or all where there are fewer."""

    count: int

    def __post_init__(self) -> None:
        whole("FirstKeys", "count", self.count, 0)

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < self.count

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        return kinds(empty=k0 >= self.count, full=k1 <= self.count)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return (k0,)
