"""A prefix that everybody sees, and causal attention after it."""

from dataclasses import dataclass

from gossamer.masks.causal import Causal
from gossamer.masks.checks import whole
from gossamer.masks.shapes import Composite
from gossamer.masks.tokens import FirstKeys


@dataclass(frozen=True)
class PrefixLM(Composite):
    """Query i sees keys 0 to i, and the first `prefix` keys in any case."""

    prefix: int

    def __post_init__(self) -> None:
        whole("PrefixLM", "prefix", self.prefix, 0)
        self.compose(Causal() | FirstKeys(self.prefix))
