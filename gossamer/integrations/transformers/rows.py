"""The rows of a batch in a SparseCache: how long they are, and which pages they have."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.integrations.transformers.kind import Kind, slots_of
from gossamer.integrations.transformers.pages import NO_PAGE, PageTable
from gossamer.integrations.transformers.steps import (
    ChunkStep,
    Compression,
    DecodeStep,
    chunk_step,
    settle,
)
from gossamer.ops.kv_block import BLOCK_TOKENS

WIDTH = 64  # tables are made for a multiple of so many blocks


class Rows:
    """lengths: tokens of each row. seen: columns of input so far, padding included."""

    def __init__(self, kind: Kind, lengths: list[int], seen: int = 0) -> None:
        self.kind, self.lengths, self.seen = kind, lengths, seen
        self.table = PageTable(len(lengths))
        self.full = 0  # how many of the last columns have no padding in any row
        self.lost = [-1] * len(lengths)  # the newest block that is in dense pages no more
        self._tables: tuple[Tensor, Tensor] | None = None

    def extend(self, columns: int, new: list[int]) -> DecodeStep | ChunkStep:
        """Room for the last `new` of so many columns in each row, and how to fill it."""
        if columns == 1:
            step: DecodeStep | ChunkStep = self._decode_step()
        else:
            step = chunk_step(self.kind, self.table, self.lengths, new, columns)
            self._tables = None
        self.lengths = [before + count for before, count in zip(self.lengths, new, strict=True)]
        self.seen += columns
        self.lost = [
            max(lost, (tokens - 1) // BLOCK_TOKENS - self.kind.ring)
            for lost, tokens in zip(self.lost, self.lengths, strict=True)
        ]
        self.full = self.full + columns if min(new) == columns else min(new)
        return step

    def _decode_step(self) -> DecodeStep:
        kind = self.kind
        compression = settle(kind, self.table, self.lengths)
        blocks = max(self.lengths) // BLOCK_TOKENS + 1
        if compression is not None or self._tables is None or self._tables[0].shape[1] < blocks:
            self._tables = self._made(-(-blocks // WIDTH) * WIDTH)
        positions, rows = torch.tensor(self.lengths), torch.arange(len(self.lengths))
        pages = kind.dense_page(rows, positions // BLOCK_TOKENS)
        return DecodeStep(
            compression,
            (pages * BLOCK_TOKENS + positions % BLOCK_TOKENS).to(kind.device),
            *self._tables,
            (positions + 1).int().to(kind.device),
        )

    def _made(self, width: int) -> tuple[Tensor, Tensor]:
        """Tables [rows, width] of stored and of dense pages, on the device."""
        stored = [pages + [NO_PAGE] * (width - len(pages)) for pages in self.table.rows]
        rows, blocks = torch.arange(len(self.lengths))[:, None], torch.arange(width)
        dense = self.kind.dense_page(rows, blocks).int()
        numbers = torch.tensor(stored, dtype=torch.int32)
        return numbers.to(self.kind.device), dense.to(self.kind.device)

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what rows[i] is."""
        self.table.select(rows)
        self.lengths = [self.lengths[row] for row in rows]
        self.lost = [self.lost[row] for row in rows]
        self._tables = None

    def crop(self, columns: int) -> Compression | None:
        """Take back the last columns. Returns blocks that must come back into dense pages.

        Raises ValueError, and changes nothing, where that is not possible.
        """
        kind = self.kind
        if columns > self.full:
            raise ValueError(
                f"crop: {columns} columns are to go, and the last {self.full} are without padding"
            )
        firsts = [kind.stored_before(tokens - columns - 1) for tokens in self.lengths]
        back = [
            (row, block, self.table.rows[row][block])
            for row, first in enumerate(firsts)
            for block in range(max(first, kind.stores.sink), self.lost[row] + 1)
            if block <= (self.lengths[row] - columns - 1) // BLOCK_TOKENS
        ]
        if back and not kind.attends.plain:
            raise ValueError(
                f"crop: {columns} tokens are to go, and blocks that would be dense again are "
                f"compressed; must be at most {self._most()} now: make the cache with "
                f"SparseCache(..., rollback={columns})"
            )
        self.lengths = [tokens - columns for tokens in self.lengths]
        self.seen, self.full, self._tables = self.seen - columns, self.full - columns, None
        for row, first in enumerate(firsts):
            del self.table.rows[row][first:]
            self.lost[row] = min(self.lost[row], max(first, kind.stores.sink) - 1)
        if not back:
            return None
        numbers = torch.tensor(back)
        sources = slots_of(kind.dense_page(numbers[:, 0], numbers[:, 1]))
        return Compression(sources.to(kind.device), slots_of(numbers[:, 2]).to(kind.device))

    def _most(self) -> int:
        """How many tokens can be taken back as things are."""
        window = self.kind.stores.window
        return min(
            tokens - 1 - (lost + 1 + window) * BLOCK_TOKENS
            for tokens, lost in zip(self.lengths, self.lost, strict=True)
            if lost >= 0
        )
