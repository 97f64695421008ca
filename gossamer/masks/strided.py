"""The Sparse Transformer's strided attention."""

from dataclasses import dataclass

from gossamer.masks.checks import LONGEST, whole
from gossamer.masks.dilated import Dilated
from gossamer.masks.shapes import Composite
from gossamer.masks.sliding import Sliding


@dataclass(frozen=True)
class Strided(Composite):
    """Causal: the `stride` keys before the query, and before those every `stride`-th one.

    Meant for a stride near the square root of the length (Child et al., 2019).
    """

    stride: int

    def __post_init__(self) -> None:
        whole("Strided", "stride", self.stride, 1)
        self.compose(Sliding.causal(self.stride) | Dilated.causal(LONGEST, self.stride))
