"""Where the dense blocks of a batch's rows lie: every row has pages of its own."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.rule import CacheRule
from gossamer.ops.kv_block import BLOCK_TOKENS


@dataclass(frozen=True, eq=False)
class Ring:
    """A page for each sink block of a row, and a ring of the blocks that end with the current one.

    spare: blocks that stay in the ring though they are stored already, so that the cache can be
    cropped to before they were.
    """

    spec: CacheSpec
    spare: int

    @cached_property
    def stores(self) -> CacheRule:
        """What is in dense pages: what queries see dense, but never everything."""
        return replace(self.spec.rule, plain=False)

    @property
    def blocks(self) -> int:
        """Of the ring itself."""
        return self.stores.window + 1 + self.spare

    @property
    def pages(self) -> int:
        """Dense pages of one row."""
        return self.stores.sink + self.blocks

    def stored_before(self, position: int) -> int:
        """Blocks below this one, but for sinks, are stored once the token at `position` is."""
        return self.stores.compressed_before(position)

    def page(self, row: int | Tensor, block: Tensor) -> Tensor:
        """Where a block of a row lies dense, while it does."""
        sink = self.stores.sink
        inside = torch.where(block < sink, block, sink + (block - sink) % self.blocks)
        return row * self.pages + inside

    def slots(self, row: int | Tensor, positions: Tensor) -> Tensor:
        """Slots of tokens of a row."""
        return self.page(row, positions // BLOCK_TOKENS) * BLOCK_TOKENS + positions % BLOCK_TOKENS

    def nbytes(self, tokens: int) -> int:
        """What a row of `tokens` needs: the formula that a cache's own `nbytes` is close to."""
        blocks = -(-tokens // BLOCK_TOKENS)
        stored = self.stores.stored_blocks(tokens)
        dense = min(blocks - stored, self.pages)
        return stored * self.spec.stored_bytes + dense * self.spec.dense_bytes
