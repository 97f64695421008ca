"""Every n-th key of a window."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.masks.checks import whole
from gossamer.masks.shapes import Diagonal, kinds


@dataclass(frozen=True)
class Dilated(Diagonal):
    """Query i sees keys i - before to i + after whose distance is a multiple of `dilation`."""

    before: int
    after: int
    dilation: int

    def __post_init__(self) -> None:
        whole("Dilated", "before", self.before, 0)
        whole("Dilated", "after", self.after, 0)
        whole("Dilated", "dilation", self.dilation, 1)

    @classmethod
    def causal(cls, before: int, dilation: int) -> "Dilated":
        """The query's own key and every `dilation`-th of the `before` keys before it."""
        return cls(before, 0, dilation)

    def sees(self, distance: Tensor) -> Tensor:
        inside = (distance <= self.before) & (distance >= -self.after)
        return inside & (distance % self.dilation == 0)

    def span(self, low: Tensor, high: Tensor) -> Tensor:
        start, end = low.clamp(min=-self.after), high.clamp(max=self.before)
        # The last multiple up to `end`, if it is not before `start`.
        empty = (start > end) | (end - end % self.dilation < start)
        one = (low == high) | (self.dilation == 1)  # else a box has neighbouring distances
        return kinds(empty, full=one & (start == low) & (end == high) & ~empty)
