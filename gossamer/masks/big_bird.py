"""BigBird: a band, global tokens, and random blocks anywhere."""

from dataclasses import dataclass

from gossamer.masks.checks import whole
from gossamer.masks.random_blocks import RandomBlocks
from gossamer.masks.shapes import Composite
from gossamer.masks.sliding import Sliding
from gossamer.masks.tokens import Keys, Queries, Ranges, TokenSet, merged


@dataclass(frozen=True, init=False)
class BigBird(Composite):
    """`window` keys on either side, global tokens, and `random` blocks for each block of queries.

    Random blocks are `block` x `block`, lie outside of the band and of the global tokens, and are
    those of `seed` (Zaheer et al., 2020). The mask is bound to n queries and n keys.
    """

    n: int
    window: int
    tokens: Ranges
    block: int
    random: int
    seed: int

    def __init__(
        self,
        n: int,
        window: int = 64,
        tokens: TokenSet = range(64),
        block: int = 64,
        random: int = 3,
        seed: int = 0,
    ) -> None:
        whole("BigBird", "n", n, 1)
        whole("BigBird", "block", block, 1)
        whole("BigBird", "random", random, 0)
        whole("BigBird", "seed", seed, 0)
        whole("BigBird", "window", window, 0)
        chosen = merged("BigBird", "tokens", tokens)
        values = {"n": n, "window": window, "tokens": chosen}
        for name, value in {**values, "block": block, "random": random, "seed": seed}.items():
            object.__setattr__(self, name, value)
        # Blocks that the band or the global tokens cover wholly would be drawn for nothing.
        covered = tuple(range(-(-t.start // block), t.stop // block) for t in chosen)
        far = RandomBlocks(n, block, random, -(-window // block), covered, seed)
        self.compose(Sliding.symmetric(window) | Keys(chosen) | Queries(chosen) | far)
        self.check(n, n)
