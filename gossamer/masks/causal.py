"""Query i sees the keys up to i."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.masks.checks import whole
from gossamer.masks.shapes import Diagonal, kinds


@dataclass(frozen=True)
class Causal(Diagonal):
    """Query i sees keys 0 to i + offset.

    With `offset = kv_len - q_len` the last query sees every key, as in a decode step or in a chunk
    of a prompt. Queries before `-offset` see nothing.
    """

    offset: int = 0

    def __post_init__(self) -> None:
        whole("Causal", "offset", self.offset)

    @property
    def family(self) -> tuple[str, bool]:
        return "causal", self.offset == 0

    def sees(self, distance: Tensor) -> Tensor:
        return distance >= -self.offset

    def span(self, low: Tensor, high: Tensor) -> Tensor:
        return kinds(empty=high < -self.offset, full=low >= -self.offset)
