"""Masks by name, with parameters that have defaults: what the CLI and benchmarks ask for."""

import inspect
import random
from collections.abc import Callable
from typing import Any

from gossamer.masks.base import Mask
from gossamer.masks.big_bird import BigBird
from gossamer.masks.big_bird_near import BigBirdNear
from gossamer.masks.block_diagonal import BlockDiagonal
from gossamer.masks.causal import Causal
from gossamer.masks.checks import LONGEST, whole
from gossamer.masks.dilated import Dilated
from gossamer.masks.documents import Documents
from gossamer.masks.fixed import Fixed
from gossamer.masks.full import Full
from gossamer.masks.longformer import Longformer
from gossamer.masks.prefix_lm import PrefixLM
from gossamer.masks.sliding import Sliding
from gossamer.masks.streaming import Streaming
from gossamer.masks.strided import Strided
from gossamer.ops.checks import one_of

Preset = Callable[..., Mask]


def named(name: str, n: int, **parameters: Any) -> Mask:
    """The mask of this name for n queries and n keys: `named("sliding", 4096, before=128)`."""
    one_of("mask", name, PRESETS)
    whole("named", "n", n, 1, LONGEST)
    valid = parameters_of(name)
    for parameter in parameters:
        if parameter not in valid:
            listed = ", ".join(valid) or "none"
            raise ValueError(f"mask {name} has no parameter {parameter!r}; it has: {listed}")
    mask = PRESETS[name](n, **parameters)
    mask.check(n, n)
    return mask


def parameters_of(name: str) -> dict[str, Any]:
    """Names and defaults of a preset's parameters."""
    items = list(inspect.signature(PRESETS[name]).parameters.items())[1:]  # the first one is n
    return {key: value.default for key, value in items}


def summary_of(name: str) -> str:
    """What a preset is, in one line."""
    return (inspect.getdoc(PRESETS[name]) or "").splitlines()[0]


def _start(n: int, count: int) -> range:
    """The first tokens, as far as there are."""
    return range(min(count, n))


def full(n: int) -> Mask:
    """every query sees every key"""
    return Full()


def causal(n: int, offset: int = 0) -> Mask:
    """keys up to the query's own"""
    return Causal(offset)


def sliding(n: int, before: int = 64, after: int = 0) -> Mask:
    """a window around the query"""
    return Sliding(before, after)


def dilated(n: int, before: int = 64, after: int = 0, dilation: int = 2) -> Mask:
    """every second key of a window"""
    return Dilated(before, after, dilation)


def strided(n: int, stride: int = 128) -> Mask:
    """Sparse Transformer: the last keys, and every stride-th one before them"""
    return Strided(stride)


def fixed(n: int, stride: int = 128, summary: int = 8) -> Mask:
    """Sparse Transformer: the query's block, and the last keys of all blocks before it"""
    return Fixed(stride, summary)


def longformer(n: int, window: int = 64, tokens: Any = 32) -> Mask:
    """a band, and global tokens: how many at the start, or which ones"""
    return Longformer(window, _start(n, tokens) if isinstance(tokens, int) else tokens)


def bigbird(
    n: int, window: int = 64, tokens: Any = 64, block: int = 64, random: int = 3, seed: int = 0
) -> Mask:
    """a band, global tokens at the start, and random blocks anywhere"""
    chosen = _start(n, tokens) if isinstance(tokens, int) else tokens
    return BigBird(n, window, chosen, block, random, seed)


def prefix_lm(n: int, prefix: int = 64) -> Mask:
    """causal, and a prefix that everybody sees"""
    return PrefixLM(prefix)


def block_diagonal(n: int, block: int = 128) -> Mask:
    """blocks that do not see each other"""
    return BlockDiagonal(block)


def documents(n: int, count: int = 4, seed: int = 0) -> Mask:
    """packed documents of random lengths, each causal"""
    whole("documents", "count", count, 1)
    cuts = sorted(random.Random(seed).choices(range(n + 1), k=count - 1))
    return Documents.from_cu_seqlens([0, *cuts, n]) & Causal()


def streaming(n: int, sinks: int = 4, window: int = 128) -> Mask:
    """StreamingLLM: the first keys, and the last ones"""
    return Streaming(sinks, window)


def stof_causal(n: int) -> Mask:
    """STOF's causal mask"""
    return Causal()


def stof_sliding(n: int) -> Mask:
    """STOF's sliding window: the last 65 keys"""
    return Sliding.causal(64)


def stof_dilated(n: int) -> Mask:
    """STOF's dilated window: every second one of the last 65 keys"""
    return Dilated.causal(64, 2)


def stof_longformer(n: int) -> Mask:
    """STOF's Longformer: band of 32, global tokens 0 to 31 and n / 2 to n / 2 + 31"""
    return Longformer(32, [_start(n, 32), range(n // 2, min(n, n // 2 + 32))])


def stof_bigbird(n: int, seed: int = 0) -> Mask:
    """STOF's BigBird: band of 32, global tokens 0 to 31, 10% of a neighbouring block of 32"""
    return BigBirdNear(32, _start(n, 32), block=32, share=0.1, seed=seed)


PRESETS: dict[str, Preset] = {
    preset.__name__.replace("_", "-"): preset
    for preset in (
        full,
        causal,
        sliding,
        dilated,
        strided,
        fixed,
        longformer,
        bigbird,
        prefix_lm,
        block_diagonal,
        documents,
        streaming,
        stof_causal,
        stof_sliding,
        stof_dilated,
        stof_longformer,
        stof_bigbird,
    )
}
