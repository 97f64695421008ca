"""What one forward pass does to the pages of a cache: planned once, done in every layer."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.engine.prefill import Pattern
from gossamer.integrations.transformers.kind import Kind, slots_of
from gossamer.integrations.transformers.pages import NO_PAGE, PageTable
from gossamer.ops.kv_block import BLOCK_TOKENS


@dataclass(frozen=True, eq=False)
class Compression:
    """Whole blocks from dense slots [N] to stored ones [N]; int64."""

    sources: Tensor
    targets: Tensor


@dataclass(frozen=True, eq=False)
class DecodeStep:
    """One token for every row. slots: where it goes; tables and lengths as in decode_attention."""

    compression: Compression | None
    slots: Tensor
    stored_table: Tensor
    dense_table: Tensor
    seq_lens: Tensor


@dataclass(frozen=True, eq=False)
class RowChunk:
    """The tokens of one row, from column `first` of the input on.

    past: (whether dense, slots) of keys from before that are seen dense, in order; with the row's
    own they are the near keys of `pattern`. packed: those near keys that are to be stored, in
    pack_slots. write: dense slots of the row's own tokens, -1 for none.
    """

    row: int
    first: int
    pattern: Pattern
    past: tuple[tuple[bool, Tensor], ...]
    far_slots: Tensor
    packed: slice
    pack_slots: Tensor
    write: Tensor


@dataclass(frozen=True, eq=False)
class ChunkStep:
    """Several tokens, of which each row has its own number."""

    compression: Compression | None
    rows: tuple[RowChunk, ...]


def settle(kind: Kind, table: PageTable, lengths: list[int]) -> Compression | None:
    """Stored pages for the blocks that the next token of each row no longer sees dense."""
    leaving = [
        (row, block)
        for row, tokens in enumerate(lengths)
        for block in _new_blocks(kind, table, row, kind.stored_before(tokens))
    ]
    if not leaving:
        return None
    pages = table.take(len(leaving))
    for (row, _), page in zip(leaving, pages, strict=True):
        table.rows[row].append(page)
    rows, blocks = torch.tensor(leaving).T
    sources, targets = slots_of(kind.dense_page(rows, blocks)), slots_of(torch.tensor(pages))
    return Compression(sources.to(kind.device), targets.to(kind.device))


def _new_blocks(kind: Kind, table: PageTable, row: int, end: int) -> range:
    """Blocks of a row that are to be stored, up to `end`; sinks get no page."""
    pages = table.rows[row]
    pages += [NO_PAGE] * (min(kind.stores.sink, end) - len(pages))
    return range(len(pages), end)


def chunk_step(
    kind: Kind, table: PageTable, lengths: list[int], new: list[int], columns: int
) -> ChunkStep:
    """Rows of `lengths` tokens get so many `new` ones, the last ones of so many columns.

    Raises ValueError for a cache whose prompts must come in one piece.
    """
    if kind.config.prefill == "dense" and any(lengths):
        raise ValueError(
            f"the cache is {kind.config}, whose prompts are seen in one piece, and it has tokens "
            "already; make a new SparseCache, or leave out prefill=dense"
        )
    compression = settle(kind, table, lengths)
    ends = [before + count for before, count in zip(lengths, new, strict=True)]
    wanted = [
        len(_new_blocks(kind, table, row, kind.stored_before(end - 1)))
        for row, end in enumerate(ends)
    ]
    pages = table.take(sum(wanted))
    for row, count in enumerate(wanted):
        table.rows[row] += pages[:count]
        del pages[:count]
    patterns: dict[tuple[int, int], Pattern] = {}
    chunks = []
    for row, (start, end) in enumerate(zip(lengths, ends, strict=True)):
        if (start, end) not in patterns:
            rule = kind.attends
            if kind.config.prefill == "dense":
                rule = replace(rule, plain=True)
            patterns[start, end] = Pattern.of(rule, start, end, kind.device)
        first = columns - (end - start)
        chunks.append(_row_chunk(kind, table, row, first, patterns[start, end]))
    return ChunkStep(compression, tuple(chunks))


def _row_chunk(kind: Kind, table: PageTable, row: int, first: int, pattern: Pattern) -> RowChunk:
    start, end = pattern.start, pattern.end
    sink, edge = kind.stores.sink, kind.stored_before(start)
    pages = torch.tensor(table.rows[row], dtype=torch.int64, device=kind.device)

    def stored(positions: Tensor) -> Tensor:
        return pages[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS

    before = pattern.near[: len(pattern.near) - (end - start)]
    past: list[tuple[bool, Tensor]] = [(True, kind.dense_slots(row, before))]
    if pattern.rule.plain:  # all of them: first sinks, then what is stored, then the window
        a = min(sink * BLOCK_TOKENS, start)
        b = min(max(edge, sink) * BLOCK_TOKENS, start)
        past = [
            (True, kind.dense_slots(row, before[:a])),
            (False, stored(before[a:b])),
            (True, kind.dense_slots(row, before[b:])),
        ]
    packed = range(max(edge, sink), max(edge, sink, kind.stored_before(end - 1)))
    shift = pattern.sinks - pattern.edge
    own = torch.arange(start, end, device=kind.device)
    block = own // BLOCK_TOKENS
    kept = (block > (end - 1) // BLOCK_TOKENS - kind.ring) | (block < sink)
    return RowChunk(
        row,
        first,
        pattern,
        tuple((dense, slots) for dense, slots in past if len(slots)),
        stored(pattern.far),
        slice(packed.start * BLOCK_TOKENS + shift, packed.stop * BLOCK_TOKENS + shift),
        slots_of(pages[packed.start : packed.stop]),
        torch.where(kept, kind.dense_slots(row, own), NO_PAGE),
    )
