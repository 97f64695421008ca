"""What is the same for all layers of a cache: formats, rule, and where a dense block lies."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gossamer.engine.block_manager import CacheRule
from gossamer.engine.kv_cache import rule_of
from gossamer.kv import KVConfig, KVShape
from gossamer.kv.layouts import PLAIN
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat


@dataclass(frozen=True)
class Kind:
    """A cache's spec in the type and on the device of its model.

    Every row has its own dense pages: one for each sink block, and a ring of the blocks that end
    with the current one. spare: blocks that stay in the ring though they are stored already, so
    that the cache can be cropped to before they were.
    """

    config: KVConfig
    shape: KVShape
    dtype: torch.dtype
    device: torch.device
    spare: int

    @cached_property
    def attends(self) -> CacheRule:
        """What queries see dense: everything, if the layout is the model's own type."""
        return rule_of(self.config, self.dtype)

    @cached_property
    def stores(self) -> CacheRule:
        """What is in dense pages: the same, but never everything."""
        return replace(self.attends, plain=False)

    @cached_property
    def k_fmt(self) -> BlockFormat:
        return self.config.k.format(self.shape.head_dim)

    @cached_property
    def v_fmt(self) -> BlockFormat:
        return self.config.v.format(self.shape.head_dim)

    @cached_property
    def dense_fmt(self) -> BlockFormat:
        return BlockFormat(self.shape.head_dim, None, PLAIN[self.dtype])

    @property
    def ring(self) -> int:
        return self.stores.window + 1 + self.spare

    @property
    def dense_pages(self) -> int:
        """Of one row."""
        return self.stores.sink + self.ring

    def stored_before(self, position: int) -> int:
        """Blocks below this one, but for sinks, are stored once the token at `position` is."""
        return self.stores.compressed_before(position)

    def dense_page(self, row: int | Tensor, block: Tensor) -> Tensor:
        """Where a block of a row lies dense, while it does."""
        sink = self.stores.sink
        inside = torch.where(block < sink, block, sink + (block - sink) % self.ring)
        return row * self.dense_pages + inside

    def dense_slots(self, row: int, positions: Tensor) -> Tensor:
        """Slots of tokens of a row in its dense pages."""
        page = self.dense_page(row, positions // BLOCK_TOKENS)
        return page * BLOCK_TOKENS + positions % BLOCK_TOKENS

    def nbytes(self, tokens: int, rows: int = 1) -> int:
        """What rows of so many tokens need: the formula that a cache's own `nbytes` is close to."""
        blocks = -(-tokens // BLOCK_TOKENS)
        stored = max(0, self.stored_before(tokens - 1) - self.stores.sink) if tokens else 0
        dense = min(blocks - stored, self.dense_pages)
        each = stored * self.config.block_bytes(self.shape)
        per_head = 2 * self.dense_fmt.nbytes
        return rows * (each + dense * per_head * self.shape.kv_heads * self.shape.layers)


def slots_of(pages: Tensor) -> Tensor:
    """All slots of these pages, int64 [32 * pages], in order."""
    offsets = torch.arange(BLOCK_TOKENS, device=pages.device)
    return (pages.long()[:, None] * BLOCK_TOKENS + offsets).flatten()
