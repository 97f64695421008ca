"""The Sparse Transformer's fixed attention."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.masks.base import Mask
from gossamer.masks.block_diagonal import BlockDiagonal
from gossamer.masks.causal import Causal
from gossamer.masks.checks import whole
from gossamer.masks.shapes import Composite, kinds


@dataclass(frozen=True)
class Fixed(Composite):
    """Causal: the query's own block of `stride` keys, and the last `summary` keys of all blocks.

    Those keys summarise their block for everybody after it (Child et al., 2019).
    """

    stride: int
    summary: int = 1

    def __post_init__(self) -> None:
        whole("Fixed", "stride", self.stride, 1)
        whole("Fixed", "summary", self.summary, 1, self.stride)
        own, summaries = BlockDiagonal(self.stride), BlockEnds(self.stride, self.summary)
        self.compose(Causal() & (own | summaries))


@dataclass(frozen=True)
class BlockEnds(Mask):
    """Every query sees the last `size` keys of each block."""

    block: int
    size: int

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k % self.block >= self.block - self.size

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        count = self._below(k1) - self._below(k0)
        return kinds(empty=count == 0, full=count == k1 - k0)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return (k0 % self.block,)

    def _below(self, k: Tensor) -> Tensor:
        """How many of these keys there are before k."""
        within = (k % self.block - (self.block - self.size)).clamp(min=0)
        return k // self.block * self.size + within
