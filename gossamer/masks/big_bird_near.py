"""STOF's BigBird: its random entries stay beside the diagonal."""

from dataclasses import dataclass

from gossamer.masks.checks import whole
from gossamer.masks.neighbours import Neighbours
from gossamer.masks.shapes import Composite
from gossamer.masks.sliding import Sliding
from gossamer.masks.tokens import Keys, Queries, Ranges, TokenSet, merged


@dataclass(frozen=True, init=False)
class BigBirdNear(Composite):
    """`window` keys on either side, global tokens, and random entries of one neighbouring block.

    For each block of queries the block before or after it, by chance; of its entries a random
    `share`. There is no far block, so that little is read: STOF's benchmark calls this BigBird.
    """

    window: int
    tokens: Ranges
    block: int
    share: float
    seed: int

    def __init__(
        self,
        window: int = 32,
        tokens: TokenSet = range(32),
        block: int = 32,
        share: float = 0.1,
        seed: int = 0,
    ) -> None:
        whole("BigBirdNear", "block", block, 1)
        whole("BigBirdNear", "seed", seed, 0)
        whole("BigBirdNear", "window", window, 0)
        if not 0 <= share <= 1:
            raise ValueError(f"BigBirdNear: share is {share}; must be 0 to 1")
        chosen = merged("BigBirdNear", "tokens", tokens)
        values = {"window": window, "tokens": chosen, "block": block}
        for name, value in {**values, "share": share, "seed": seed}.items():
            object.__setattr__(self, name, value)
        band = Sliding.symmetric(window)
        near = Neighbours(block, float(share), seed)
        self.compose(band | Keys(chosen) | Queries(chosen) | near)
