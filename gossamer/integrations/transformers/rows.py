"""The rows of a batch in a SparseCache: how long they are, their pages, and what a pass does."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.integrations.transformers.pages import PageTable
from gossamer.integrations.transformers.ring import Ring
from gossamer.kv.cache_step import CacheStep, Chunk, DecodeBatch
from gossamer.kv.paged_cache import slots_of
from gossamer.kv.pages import NO_PAGE
from gossamer.kv.rule import ChunkMask
from gossamer.ops.kv_block import BLOCK_TOKENS

WIDTH = 64  # blocks: tables are made for a multiple of it


@dataclass(frozen=True, eq=False)
class Move:
    """Whole blocks between dense slots [N] and stored ones [N]; int64."""

    dense: Tensor
    stored: Tensor


@dataclass(frozen=True, eq=False)
class RowsStep:
    """One forward pass: planned once, done in every layer.

    ahead: tokens and their dense slots that complete blocks of `compress`; to be written before.
    """

    cache: CacheStep
    compress: Move | None
    ahead: tuple[Tensor, Tensor] | None = None


class Rows:
    """lengths: tokens of each row. seen: columns of input so far, padding included."""

    def __init__(self, ring: Ring, lengths: list[int]) -> None:
        self.ring, self.lengths, self.seen = ring, lengths, 0
        self.device = ring.spec.device
        self.table = PageTable(len(lengths))
        self.full = 0  # how many of the last columns have no padding in any row
        self.lost = [-1] * len(lengths)  # the newest block that is in dense pages no more
        self._tables: tuple[Tensor, Tensor] | None = None

    def extend(self, columns: int, new: list[int]) -> RowsStep:
        """Room for the last `new` of `columns` in each row, and how to fill it."""
        step = self._decode() if columns == 1 else self._chunks(new, columns)
        self.lengths = [before + count for before, count in zip(self.lengths, new, strict=True)]
        self.seen += columns
        self.lost = [
            max(lost, (tokens - 1) // BLOCK_TOKENS - self.ring.blocks)
            for lost, tokens in zip(self.lost, self.lengths, strict=True)
        ]
        self.full = self.full + columns if min(new) == columns else min(new)
        return step

    # ---- one token for every row -------------------------------------------------------------

    def _decode(self) -> RowsStep:
        leaving = self._store(self.lengths)
        blocks = max(self.lengths) // BLOCK_TOKENS + 1
        if leaving or self._tables is None or self._tables[0].shape[1] < blocks:
            self._tables = self._made(-(-blocks // WIDTH) * WIDTH)
        positions, rows = torch.tensor(self.lengths), torch.arange(len(self.lengths))
        slots = self.ring.slots(rows, positions).to(self.device)
        batch = DecodeBatch(*self._tables, (positions + 1).int().to(self.device))
        return RowsStep(CacheStep(slots, batch), self._move(leaving))

    def _store(self, newest: list[int]) -> list[tuple[int, int, int]]:
        """(row, block, page) of blocks that each row's query at `newest` no longer sees dense."""
        blocks = []
        for row, position in enumerate(newest):
            end, pages = self.ring.stored_before(position), self.table.rows[row]
            pages += [NO_PAGE] * (min(self.ring.stores.sink, end) - len(pages))  # sinks get none
            blocks += [(row, block) for block in range(len(pages), end)]
        named = zip(blocks, self.table.take(len(blocks)), strict=True)
        stored = [(row, block, page) for (row, block), page in named]
        for row, _, page in stored:
            self.table.rows[row].append(page)
        return stored

    def _move(self, blocks: list[tuple[int, int, int]]) -> Move | None:
        if not blocks:
            return None
        row, block, page = torch.tensor(blocks).T
        dense, stored = slots_of(self.ring.page(row, block)), slots_of(page)
        return Move(dense.to(self.device), stored.to(self.device))

    def _made(self, width: int) -> tuple[Tensor, Tensor]:
        """Tables [rows, width] of stored and of dense pages, on the device."""
        stored = [pages + [NO_PAGE] * (width - len(pages)) for pages in self.table.rows]
        rows, blocks = torch.arange(len(self.lengths))[:, None], torch.arange(width)
        dense = self.ring.page(rows, blocks).int()
        numbers = torch.tensor(stored, dtype=torch.int32)
        return numbers.to(self.device), dense.to(self.device)

    # ---- several tokens, of which each row has its own number --------------------------------

    def _chunks(self, new: list[int], columns: int) -> RowsStep:
        """The last `new` of `columns`. ValueError where prompts must come in one piece."""
        config, rule = self.ring.spec.config, self.ring.spec.rule
        if rule.whole_prompts:
            if any(self.lengths):
                raise ValueError(
                    f"the cache is {config}, whose prompts are seen in one piece, and it has "
                    "tokens already; make a new SparseCache, or leave out prefill=dense"
                )
            rule = replace(rule, plain=True)
        self._tables = None
        ends = [start + count for start, count in zip(self.lengths, new, strict=True)]
        stored = self._store([end - 1 for end in ends])
        # The place of a row's position 0 among the tokens of all columns, padding included.
        firsts = [(row + 1) * columns - end for row, end in enumerate(ends)]
        chunks, slots = [], torch.full((len(ends) * columns,), NO_PAGE)
        for row, (start, end) in enumerate(zip(self.lengths, ends, strict=True)):
            tokens = slice(firsts[row] + start, firsts[row] + end)
            mask = rule.chunk(start, end)
            chunks.append(Chunk(tokens, mask, self._past(row, mask)))
            slots[tokens] = self._kept(row, start, end)
        whole = [block * BLOCK_TOKENS >= self.lengths[row] for row, block, _ in stored]
        earlier = [move for move, own in zip(stored, whole, strict=True) if not own]
        step = CacheStep(slots.to(self.device), None, chunks=tuple(chunks))
        if any(whole):
            packed = [
                (firsts[row] + block * BLOCK_TOKENS, page)
                for (row, block, page), own in zip(stored, whole, strict=True)
                if own
            ]
            first, page = torch.tensor(packed, device=self.device).T
            tokens = first[:, None] + torch.arange(BLOCK_TOKENS, device=self.device)
            step = replace(step, pack_tokens=tokens.flatten(), pack_slots=slots_of(page))
        return RowsStep(step, self._move(earlier), self._ahead(earlier, firsts))

    def _past(self, row: int, mask: ChunkMask) -> tuple[tuple[bool, Tensor], ...]:
        """Slots of the keys from before, in the order of the mask."""
        sinks, window = mask.past
        parts = [(False, mask.far), (True, sinks), (True, window)]
        if mask.rule.plain:  # all of them: first sinks, then what is stored, then the ring
            sink, edge = self.ring.stores.sink, self.ring.stored_before(mask.start)
            a = min(sink * BLOCK_TOKENS, mask.start)
            b = min(max(edge, sink) * BLOCK_TOKENS, mask.start)
            parts = [(True, range(a)), (False, range(a, b)), (True, range(b, mask.start))]
        found = [(dense, self._slots(row, keys, dense)) for dense, keys in parts if len(keys)]
        return tuple(found)

    def _slots(self, row: int, keys: range, dense: bool) -> Tensor:
        positions = torch.arange(keys.start, keys.stop)
        if dense:
            return self.ring.slots(row, positions).to(self.device)
        pages = torch.tensor(self.table.rows[row])[positions // BLOCK_TOKENS]
        return (pages * BLOCK_TOKENS + positions % BLOCK_TOKENS).to(self.device)

    def _kept(self, row: int, start: int, end: int) -> Tensor:
        """Dense slots of a row's new tokens, -1 for those that its ring does not hold."""
        own = torch.arange(start, end)
        block = own // BLOCK_TOKENS
        kept = (block > (end - 1) // BLOCK_TOKENS - self.ring.blocks) | (
            block < self.ring.stores.sink
        )
        return torch.where(kept, self.ring.slots(row, own), NO_PAGE)

    def _ahead(
        self, blocks: list[tuple[int, int, int]], firsts: list[int]
    ) -> tuple[Tensor, Tensor] | None:
        """New tokens that complete blocks which are compressed at once."""
        tokens, slots = [], []
        for row, block, _ in blocks:
            start = self.lengths[row]
            own = torch.arange(start, max(start, (block + 1) * BLOCK_TOKENS))
            tokens.append(own + firsts[row])
            slots.append(self.ring.slots(row, own))
        if not any(len(some) for some in tokens):
            return None
        return torch.cat(tokens).to(self.device), torch.cat(slots).to(self.device)

    # ---- other rows, fewer tokens -------------------------------------------------------------

    def forget_tables(self) -> None:
        """Pages have other numbers now."""
        self._tables = None

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what rows[i] is."""
        self.table.select(rows)
        self.lengths = [self.lengths[row] for row in rows]
        self.lost = [self.lost[row] for row in rows]
        self._tables = None

    def crop(self, columns: int) -> Move | None:
        """Take back the last columns. Returns blocks that must come back into dense pages.

        Raises ValueError, and changes nothing, where that is not possible.
        """
        ring, sink = self.ring, self.ring.stores.sink
        if columns > self.full:
            raise ValueError(
                f"crop: {columns} columns are to go, and the last {self.full} are without padding"
            )
        firsts = [ring.stored_before(tokens - columns - 1) for tokens in self.lengths]
        back = [
            (row, block, self.table.rows[row][block])
            for row, first in enumerate(firsts)
            for block in range(max(first, sink), self.lost[row] + 1)
            if block <= (self.lengths[row] - columns - 1) // BLOCK_TOKENS
        ]
        if back and not ring.spec.rule.plain:
            raise ValueError(
                f"crop: {columns} tokens are to go, and blocks that would be dense again are "
                f"compressed; must be at most {self._most()} now: make the cache with "
                f"SparseCache(..., rollback={columns})"
            )
        self.lengths = [tokens - columns for tokens in self.lengths]
        self.seen, self.full, self._tables = self.seen - columns, self.full - columns, None
        for row, first in enumerate(firsts):
            del self.table.rows[row][first:]
            self.lost[row] = min(self.lost[row], max(first, sink) - 1)
        return self._move(back)

    def _most(self) -> int:
        """How many tokens can be taken back as things are."""
        window = self.ring.stores.window
        return min(
            tokens - 1 - (lost + 1 + window) * BLOCK_TOKENS
            for tokens, lost in zip(self.lengths, self.lost, strict=True)
            if lost >= 0
        )
