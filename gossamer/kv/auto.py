"""`--kv auto`: which cache of the LADDER to take, by bytes, expected loss and time.

    auto            the fastest within +0.01 NLL of dense
    auto:quality    the fastest within +0.002
    auto:speed      the fastest within +0.05
    auto:25%        the least loss in a quarter of dense float16's bytes at 8,192 tokens, window and
                    sink counted; bytes that are left make the window longer

Expected losses are those that the model's calibration measured. A cache that breaks a model (rows
of 4 bits do with keys of a few large channels) has a large one there, and is not taken.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from gossamer.kv.bits import by_eighths
from gossamer.kv.calibration import Calibration
from gossamer.kv.config import KVConfig
from gossamer.kv.ladder import EIGHTHS, LADDER, TYPICAL, Loss
from gossamer.kv.layouts import Side
from gossamer.kv.shape import KVShape
from gossamer.kv.speed import DecodeSpeed
from gossamer.ops.kv_block import BLOCK_TOKENS

PREFIX = "auto"
MOST_LOSS = {"auto": 0.01, "auto:quality": 0.002, "auto:speed": 0.05}
LENGTH = 8192  # tokens at which bytes count
LONGEST_WINDOW = 192  # more would be a large part of the contexts that losses are measured in
# Losses that nobody could tell apart, and times: the other criterion decides among them.
SAME_LOSS, SAME_FACTOR, SAME_SPEED = 0.001, 1.15, 0.95
UNKNOWN_SPEED = 0.5  # of a cache without a tuned kernel, where nothing can be measured

Speed = Callable[[KVConfig], DecodeSpeed]


@dataclass(frozen=True)
class Preset:
    """most_loss: of the fastest that is wanted; share: of dense's bytes. One of them is None."""

    text: str
    most_loss: float | None = None
    share: float | None = None

    @classmethod
    def parse(cls, kv: object) -> "Preset | None":
        """None for what is no preset. Raises ValueError for one that does not exist."""
        if not isinstance(kv, str) or kv.strip().partition(":")[0] != PREFIX:
            return None
        text = kv.strip()
        if text in MOST_LOSS:
            return cls(text, most_loss=MOST_LOSS[text])
        percent = re.fullmatch(r"auto:([0-9]{1,3}(?:\.[0-9]{1,6})?)%", text)
        if percent is None or not 0 < float(percent[1]) <= 100:
            raise ValueError(
                f"KV preset {text!r}; must be {', '.join(MOST_LOSS)} or a share of dense float16 "
                "above 0% and up to 100%, like auto:25%"
            )
        return cls(text, share=float(percent[1]) / 100)


@dataclass(frozen=True)
class Rung:
    """A cache that could be chosen. share: of dense float16 at LENGTH tokens."""

    config: KVConfig
    loss: Loss
    share: float


@dataclass(frozen=True)
class Chosen:
    """What a preset came to. measured: whether losses are the model's own, not SmolLM2's."""

    preset: Preset
    rung: Rung
    speed: DecodeSpeed
    measured: bool

    @property
    def config(self) -> KVConfig:
        return self.rung.config

    def __str__(self) -> str:
        share = self.preset.share
        if share is None:
            reason = f"the fastest within {self.preset.most_loss:+g} NLL"
        else:
            reason = f"the least loss in {100 * share:g}% of the bytes"
        known = "" if self.measured else " (as on SmolLM2)"
        return (
            f"{self.preset.text}: {self.config}, {self.rung.share:.1%} of dense float16 at "
            f"{LENGTH:,} tokens, expected loss {self.rung.loss}{known}, {self.speed}; {reason}"
        )


def choose(
    preset: Preset, calibration: Calibration, shape: KVShape, dtype: torch.dtype, speed: Speed
) -> Chosen:
    """The cache that a preset means for a model. speed: how a cache decodes on its device.

    Raises ValueError for a share that no cache fits, with the smallest one that there is.
    """
    losses = calibration.manifest.losses
    rungs = list(_rungs(calibration, losses or TYPICAL, shape, dtype))
    if preset.most_loss is not None:
        within = [rung for rung in rungs if rung.loss.mean <= preset.most_loss]
        best = _fastest(within, speed)
    else:
        assert preset.share is not None
        best = _smallest_loss(rungs, preset.share, speed)
        best = _with_longest_window(best, preset.share, shape)
    return Chosen(preset, best, speed(best.config), bool(losses))


def _rungs(
    calibration: Calibration, losses: Mapping[str, Loss], shape: KVShape, dtype: torch.dtype
) -> Iterable[Rung]:
    """Dense, and those of the ladder that have a loss and that such heads can have."""
    dense = KVConfig.of("dense", dtype)
    yield Rung(dense, Loss(0.0, 0.0), dense.share_at(shape, LENGTH))
    for spec in LADDER:
        if spec in losses and (config := possible(spec, calibration, shape, dtype)) is not None:
            yield Rung(config, losses[spec], config.share_at(shape, LENGTH))


def possible(
    spec: str, calibration: Calibration, shape: KVShape, dtype: torch.dtype
) -> KVConfig | None:
    """A cache of the ladder with all bits known; None where these heads cannot have it."""
    try:
        if spec in EIGHTHS:
            k, v = by_eighths(EIGHTHS[spec], shape.head_dim)
            config = KVConfig(Side(k), Side(v))
        else:
            config = KVConfig.of(spec, dtype).resolve(calibration)
        config.block_bytes(shape)
    except ValueError:
        return None
    return config


def _factor(rung: Rung, speed: Speed) -> float:
    """How many times as fast as dense: measured, or by its bytes."""
    found = speed(rung.config)
    if found.against_dense is not None:
        return found.against_dense
    return 1 / rung.share if found.tuned else UNKNOWN_SPEED


def _fastest(rungs: list[Rung], speed: Speed) -> Rung:
    """Of those that are equally fast, the smallest."""
    factors = [_factor(rung, speed) for rung in rungs]
    enough = SAME_SPEED * max(factors)
    close = [rung for rung, factor in zip(rungs, factors, strict=True) if factor >= enough]
    return min(close, key=lambda rung: rung.share)


def _smallest_loss(rungs: list[Rung], share: float, speed: Speed) -> Rung:
    """Of those in these bytes with a loss that cannot be told from the least, the fastest."""
    fitting = [rung for rung in rungs if rung.share <= share]
    if not fitting:
        least = min(rungs, key=lambda rung: rung.share)
        raise ValueError(
            f"no cache fits {100 * share:g}% of the bytes of dense float16; the smallest is "
            f"{least.config} with {least.share:.1%} at {LENGTH:,} tokens: "
            f"auto:{100 * least.share + 0.05:.1f}%"
        )
    least_loss = max(0.0, min(rung.loss.mean for rung in fitting))
    same = max(least_loss + SAME_LOSS, least_loss * SAME_FACTOR)
    return _fastest([rung for rung in fitting if rung.loss.mean <= same], speed)


def _with_longest_window(rung: Rung, share: float, shape: KVShape) -> Rung:
    """Tokens in it cost nothing but their bytes: 14% with a window of 128 loses 0.045 instead of
    0.064 on SmolLM2."""
    config = rung.config
    if config.share(shape) >= 1:
        return rung
    for window in range(LONGEST_WINDOW, config.window, -BLOCK_TOKENS):
        longer = replace(config, window=window)
        if longer.share_at(shape, LENGTH) <= share:
            return replace(rung, config=longer, share=longer.share_at(shape, LENGTH))
    return rung
