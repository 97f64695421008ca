"""Longformer: a band, and global tokens that see and are seen by all."""

from dataclasses import dataclass

from gossamer.masks.shapes import Composite
from gossamer.masks.sliding import Sliding
from gossamer.masks.tokens import Keys, Queries, Ranges, TokenSet, merged


@dataclass(frozen=True, init=False)
class Longformer(Composite):
    """`window` keys on either side of the query, and global tokens, anywhere.

    `tokens` is an index, a range or several of them: `[0, 7, range(100, 132)]`. Each is seen by
    every query and sees every key (Beltagy et al., 2020).
    """

    window: int
    tokens: Ranges

    def __init__(self, window: int, tokens: TokenSet) -> None:
        band = Sliding.symmetric(window)
        chosen = merged("Longformer", "tokens", tokens)
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "tokens", chosen)
        self.compose(band | Keys(chosen) | Queries(chosen))
