"""A window that moves along with the query."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.masks.checks import whole
from gossamer.masks.shapes import Diagonal, kinds


@dataclass(frozen=True)
class Sliding(Diagonal):
    """Query i sees keys i - before to i + after."""

    before: int
    after: int

    def __post_init__(self) -> None:
        whole("Sliding", "before", self.before, 0)
        whole("Sliding", "after", self.after, 0)

    @classmethod
    def causal(cls, before: int) -> "Sliding":
        """The query's own key and `before` keys before it."""
        return cls(before, 0)

    @classmethod
    def symmetric(cls, width: int) -> "Sliding":
        """The query's own key and `width` keys on either side."""
        return cls(width, width)

    def sees(self, distance: Tensor) -> Tensor:
        return (distance <= self.before) & (distance >= -self.after)

    def span(self, low: Tensor, high: Tensor) -> Tensor:
        empty = (low > self.before) | (high < -self.after)
        return kinds(empty, full=(high <= self.before) & (low >= -self.after))
