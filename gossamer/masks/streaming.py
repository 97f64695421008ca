"""StreamingLLM: attention sinks and a causal window."""

from dataclasses import dataclass

from gossamer.masks.causal import Causal
from gossamer.masks.checks import whole
from gossamer.masks.shapes import Composite
from gossamer.masks.sliding import Sliding
from gossamer.masks.tokens import FirstKeys


@dataclass(frozen=True)
class Streaming(Composite):
    """Causal: the first `sinks` keys and the last `window` ones, the query's own among them."""

    sinks: int
    window: int

    def __post_init__(self) -> None:
        whole("Streaming", "sinks", self.sinks, 0)
        whole("Streaming", "window", self.window, 1)
        self.compose(Causal() & FirstKeys(self.sinks) | Sliding.causal(self.window - 1))
