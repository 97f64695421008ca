"""One mask of every kind, and what each means: its definition written again, entry by entry."""

import random
from collections.abc import Callable

import torch

from gossamer import masks as m

Rule = Callable[[int, int], bool]

# Masks for any lengths. The rule says whether query i sees key j.
FREE: dict[str, tuple[m.Mask, Rule]] = {
    "full": (m.Full(), lambda i, j: True),
    "causal": (m.Causal(), lambda i, j: j <= i),
    "causal ahead": (m.Causal(5), lambda i, j: j <= i + 5),
    "causal behind": (m.Causal(-70), lambda i, j: j <= i - 70),
    "sliding": (m.Sliding(10, 3), lambda i, j: -3 <= i - j <= 10),
    "sliding causal": (m.Sliding.causal(64), lambda i, j: 0 <= i - j <= 64),
    "sliding wide": (m.Sliding.symmetric(100), lambda i, j: abs(i - j) <= 100),
    "dilated": (m.Dilated(30, 7, 3), lambda i, j: -7 <= i - j <= 30 and (i - j) % 3 == 0),
    "dilated causal": (m.Dilated.causal(64, 2), lambda i, j: i - j in range(0, 65, 2)),
    "strided": (m.Strided(24), lambda i, j: 0 <= i - j <= 24 or (j <= i and (i - j) % 24 == 0)),
    "fixed": (m.Fixed(20, 3), lambda i, j: j <= i and (j // 20 == i // 20 or j % 20 >= 17)),
    "prefix-lm": (m.PrefixLM(37), lambda i, j: j <= i or j < 37),
    "block-diagonal": (m.BlockDiagonal(50), lambda i, j: i // 50 == j // 50),
    "streaming": (m.Streaming(4, 30), lambda i, j: j <= i and (j < 4 or i - j < 30)),
    "global token": (m.Longformer(5, 0), lambda i, j: abs(i - j) <= 5 or i == 0 or j == 0),
}


def bound(n: int) -> dict[str, tuple[m.Mask, Rule]]:
    """Masks that need to know the number n of queries and keys."""
    some = [0, range(n // 3, n // 2), n - 1]
    many = range(0, n, 5)
    chosen = {0, n - 1, *range(n // 3, n // 2)}
    lengths = [n // 4, 0, n - n // 4]
    ids = torch.randint(-1, 3, (n,)).sort().values.roll(n // 3)
    table = torch.rand(n, n) < 0.3
    return {
        "longformer": (
            m.Longformer(8, some),
            lambda i, j: abs(i - j) <= 8 or i in chosen or j in chosen,
        ),
        "longformer, many": (
            m.Longformer(2, many),
            lambda i, j: abs(i - j) <= 2 or i % 5 == 0 or j % 5 == 0,
        ),
        "documents": (m.Documents(lengths), lambda i, j: (i < n // 4) == (j < n // 4)),
        "document ids": (m.DocumentIds(ids), lambda i, j: bool(ids[i] == ids[j] >= 0)),
        "dense": (m.DenseMask(table), lambda i, j: bool(table[i, j])),
    }


def all_masks(n: int) -> dict[str, m.Mask]:
    """Every kind for n queries and n keys."""
    found = {name: mask for name, (mask, _) in {**FREE, **bound(n)}.items()}
    tokens = range(min(n, 7))
    found["bigbird"] = m.BigBird(n, window=20, tokens=tokens, block=24, random=2, seed=3)
    found["bigbird near"] = m.BigBirdNear(8, tokens, block=16, share=0.2, seed=3)
    return found


def combined(n: int, seed: int) -> m.Mask:
    """Some of them in a random expression."""
    draw = random.Random(seed)
    parts = list(all_masks(n).values())
    mask = draw.choice(parts)
    for _ in range(draw.randint(1, 3)):
        other = draw.choice(parts)
        mask = draw.choice([mask & other, mask | other, ~mask, mask & ~other])
    return mask
