"""What a query sees of a cache depends on positions alone: the rule, and the rule as a mask.

Everything is in blocks of 32 tokens. A query sees its own block, the window of blocks before it and
the first blocks (the sink) dense, all others as they are stored; in prefill and in decode, however
sequences are batched, chunked or cached.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gossamer.kv.config import KVConfig
from gossamer.kv.layouts import PLAIN, Dense
from gossamer.masks import Causal, Mask, Queries, Sliding
from gossamer.masks.base import EMPTY, FULL, MIXED, Device
from gossamer.ops.kv_block import BLOCK_TOKENS


@dataclass(frozen=True)
class CacheRule:
    """What is dense, in blocks; `plain` when everything is, in the model's own type.

    whole_prompts: prompts attend densely in one piece and are compressed afterwards. prompt_mask:
    what tokens of a prompt see of the past; the tokens after it see all of it.
    """

    window: int
    sink: int
    plain: bool
    whole_prompts: bool = False
    prompt_mask: Mask | None = None

    @classmethod
    def of(
        cls, config: KVConfig, dtype: torch.dtype, prompt_mask: Mask | None = None
    ) -> "CacheRule":
        """In blocks what the config says in tokens; dtype: of the model."""
        layout = Dense(PLAIN[dtype])
        return cls(
            window=config.window // BLOCK_TOKENS,
            sink=config.sink // BLOCK_TOKENS,
            plain=config.k.layout == config.v.layout == layout,
            whole_prompts=config.prefill == "dense",
            prompt_mask=prompt_mask,
        )

    def compressed_before(self, position: int) -> int:
        """Blocks below this one are seen compressed by the query at `position` (but for sinks)."""
        return 0 if self.plain else max(0, position // BLOCK_TOKENS - self.window)

    def stored_blocks(self, tokens: int) -> int:
        """Stored pages of a sequence of `tokens`."""
        if self.plain:
            return -(-tokens // BLOCK_TOKENS)
        return max(0, self.compressed_before(tokens - 1) - self.sink)

    @property
    def dense_pages(self) -> int:
        """The most dense pages that a sequence has between steps."""
        return 0 if self.plain else self.window + 1 + self.sink

    @property
    def most_dense_pages(self) -> int:
        """And in a step: the first tokens of a chunk see the window that its end pushes out."""
        return 0 if self.plain else self.dense_pages + self.window

    @property
    def shares_prefixes(self) -> bool:
        """Whether a block is the same in a prompt and after it, so that others may use it."""
        return not self.whole_prompts and self.prompt_mask is None

    def seen_stored(self, blocks: int) -> range:
        """Of a prefix, the blocks that tokens after it see as stored; the others they see dense."""
        edge = blocks if self.plain else max(0, blocks - self.window)
        return range(0 if self.plain else min(self.sink, edge), edge)

    def longest_prefix(self, stored: Sequence[bool], dense: Sequence[bool]) -> int:
        """Blocks of the longest prefix of which all pages are there: stored[b], dense[b] say so."""
        sinks = 0 if self.plain else min(self.sink, len(stored))
        far = next((b for b in range(sinks, len(stored)) if not stored[b]), len(stored))
        if self.plain:
            return far
        longest = run = 0  # run: dense blocks up to this one
        for block, there in enumerate(dense):
            run = run + 1 if there else 0
            if block < sinks and not there:
                break
            if block + 1 - self.window <= far and run >= min(self.window, block + 1):
                longest = block + 1
        return longest

    def chunk(self, start: int, end: int, prompt: int = 0) -> "ChunkMask":
        """For the tokens start to end - 1 of a sequence; prompt: tokens of its prompt."""
        within: Mask = Causal()
        if self.prompt_mask is not None:
            seen = self.prompt_mask
            if end > prompt:  # also tokens that were sampled, and are computed again
                seen = seen | Queries((range(prompt, end),))
            within = within & seen
        return ChunkMask(self, start, end, within)


def _kin(mask: Mask) -> Hashable:
    """What a mask is made of, without its tensors."""
    if isinstance(mask, Sliding):
        return mask
    return type(mask), *(_kin(part) for part in mask.parts)


@dataclass(frozen=True)
class ChunkMask(Mask):
    """Which keys the queries at positions start to end - 1 see.

    Keys come in three parts: `far` as stored, then the first `sinks` and all from `edge` on, dense.
    A block can be among the far and among the near ones: each query sees it once. within: a mask
    of positions, of which key parts are pieces.
    """

    rule: CacheRule
    start: int
    end: int
    within: Mask = Causal()  # noqa: RUF009  frozen

    @cached_property
    def edge(self) -> int:
        """The first position after the sinks that some query sees dense."""
        return self.rule.compressed_before(self.start) * BLOCK_TOKENS

    @cached_property
    def sinks(self) -> int:
        return min(self.rule.sink * BLOCK_TOKENS, self.edge)

    @cached_property
    def far(self) -> range:
        """Positions of the keys that some query sees as stored."""
        stored = self.rule.compressed_before(self.end - 1) * BLOCK_TOKENS
        return range(min(self.rule.sink * BLOCK_TOKENS, stored), stored)

    @property
    def causal(self) -> bool:
        """Whether each query sees all keys up to its own place, and all of them dense."""
        return self.edge == 0 and not len(self.far) and self.within == Causal()

    @property
    def past(self) -> tuple[range, range]:
        """Positions of the near keys from before the chunk: sinks, and the window."""
        return range(self.sinks), range(self.edge, self.start)

    @property
    def lengths(self) -> tuple[int, int]:
        return self.end - self.start, len(self.far) + self.sinks + self.end - self.edge

    @property
    def heads(self) -> int | None:
        return self.within.heads

    def at(self, b: int, h: int) -> Mask:
        return replace(self, within=self.within.at(b, h))

    @property
    def parts(self) -> tuple[Mask, ...]:
        return (self.within,)

    @property
    def family(self) -> Hashable:
        """Chunks of similar lengths have similar tiles, wherever they start."""
        return self.rule.window, self.rule.sink, self.rule.plain, _kin(self.within)

    def sliding(self, tokens: int) -> Mask:
        """The mask of a layer that sees only the last `tokens`, 0 for all; as simple as it is."""
        mask = self
        if tokens and self.end > tokens:
            slide = Sliding.causal(tokens - 1)
            within = slide if mask.within == Causal() else mask.within & slide
            mask = replace(mask, within=within)
        plain = not len(mask.far) and mask.edge == 0
        return Causal(mask.start) if plain and mask.within == Causal() else mask

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query, key = q + self.start, self._position(k)
        far = k < len(self.far)
        if self.rule.plain:
            return self.within.predicate(b, h, query, key)
        first, block = query // BLOCK_TOKENS - self.rule.window, key // BLOCK_TOKENS
        near = (block >= first) | (block < self.rule.sink)
        return torch.where(far, block < first, near) & self.within.predicate(b, h, query, key)

    def _position(self, k: Tensor) -> Tensor:
        near = k - len(self.far)
        dense = torch.where(near < self.sinks, near, near - self.sinks + self.edge)
        return torch.where(near < 0, k + self.far.start, dense)

    def _part(self, k: Tensor) -> Tensor:
        """0, 1, 2: far, sinks, window."""
        near = k - len(self.far)
        return (near >= 0).int() + (near >= self.sinks).int()

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        part = self._part(k0)
        whole = part == self._part(k1 - 1)
        low = self._position(k0)
        high = torch.where(
            whole, self._position(k1 - 1), low
        )  # boxes of two parts are not looked at
        box = (q0 + self.start, q1 + self.start, low, high + 1, b, h)
        kinds = self.within.classify(*box)
        if not self.rule.plain:
            first, last = low // BLOCK_TOKENS, high // BLOCK_TOKENS
            # The block in which the window of the first and of the last query begins.
            least = box[0] // BLOCK_TOKENS - self.rule.window
            most = (box[1] - 1) // BLOCK_TOKENS - self.rule.window
            far = part == 0
            full = torch.where(far, last < least, (first >= most) | (last < self.rule.sink))
            empty = torch.where(far, first >= most, (last < least) & (first >= self.rule.sink))
            mine = torch.where(full, FULL, torch.where(empty, EMPTY, MIXED)).to(torch.int8)
            kinds = torch.minimum(kinds, mine)
        return torch.where(whole, kinds, MIXED).to(torch.int8)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        part, query, key = self._part(k0), q0 + self.start, self._position(k0)
        whole = part == self._part(k1 - 1)
        end = torch.where(whole, self._position(k1 - 1), key) + 1
        inside = self.within.signature(query, q1 + self.start, key, end)
        return (
            torch.where(whole, part, 3),
            torch.where(whole, query - key, k0),
            torch.where(whole, query % BLOCK_TOKENS, q0),
            torch.where(whole, key.clamp(max=self.rule.sink * BLOCK_TOKENS), 0),
            *(torch.where(whole, column, 0) for column in inside),
        )

    def to(self, device: Device) -> "ChunkMask":
        return replace(self, within=self.within.to(device))
