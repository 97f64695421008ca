"""What a cache takes for a sequence of some length, and how much of that is wanted."""

import re
from dataclasses import dataclass
from typing import Self

from gossamer.engine.config import parse_bytes
from gossamer.kv import KVConfig, KVShape
from gossamer.ops.kv_block import BLOCK_TOKENS


def sequence_bytes(config: KVConfig, shape: KVShape, length: int) -> int:
    """Of one sequence: stored blocks, and dense 16-bit ones for itself, window and sink.

    The accounting of KVConfig.tokens_that_fit, so windows and sinks are not free.
    """
    blocks = -(-length // BLOCK_TOKENS)
    dense = min(blocks, 1 + (config.window + config.sink) // BLOCK_TOKENS)
    plain = KVConfig().block_bytes(shape)
    return dense * plain + (blocks - dense) * config.block_bytes(shape)


def share_at(config: KVConfig, shape: KVShape, length: int) -> float:
    """Those bytes relative to a dense float16 cache."""
    return sequence_bytes(config, shape, length) / sequence_bytes(KVConfig(), shape, length)


@dataclass(frozen=True)
class Budget:
    """share: of dense float16, for a sequence of `length` tokens. words: as it was given."""

    words: str
    share: float
    length: int

    @classmethod
    def parse(cls, words: str, shape: KVShape, length: int) -> Self:
        """`25%`, or bytes per token: `5760`, `5.5KB`. ValueError says what is valid."""
        if type(length) is not int or length < BLOCK_TOKENS:
            raise ValueError(f"length is {length!r}; must be at least {BLOCK_TOKENS} tokens")
        whole = KVConfig().bytes_per_token(shape)
        percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%", words.strip())
        try:
            share = float(percent[1]) / 100 if percent else parse_bytes("", words) / whole
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            raise ValueError(
                f"budget is {words!r}; must be above 0% and below 100% of dense float16, like 25%, "
                f"or bytes per token from 1 to {whole - 1:.0f}"
            )
        return cls(words.strip(), share, length)

    def holds(self, config: KVConfig, shape: KVShape, times: float = 1.0) -> bool:
        """Whether a cache fits, or fits so many times the budget."""
        return share_at(config, shape, self.length) <= self.share * times + 1e-12
