"""Runs the model for one step: page tables on the device, the context of a step, CUDA graphs."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gossamer.engine.attention import DecodeBatch, PrefillSpan, StepAttention, StepContext
from gossamer.engine.graphs import DecodeGraphs
from gossamer.engine.kv_cache import KVCache
from gossamer.engine.prefill import Pattern
from gossamer.engine.sequence import NO_PAGE
from gossamer.engine.step import Span, StepInput
from gossamer.engine.transfer import ints
from gossamer.models import Decoder
from gossamer.ops.kv_block import BLOCK_TOKENS


class ModelRunner:
    """One rank's model and cache.

    Page tables live on the device, a line per running sequence and one of NO_PAGE for padding; a
    step only sends what changes in them.
    """

    def __init__(
        self, decoder: Decoder, cache: KVCache, max_num_seqs: int, max_model_len: int, eager: bool
    ) -> None:
        self.decoder, self.cache = decoder, cache
        self.device = torch.device(decoder.device)
        pages = -(-max_model_len // BLOCK_TOKENS)
        self.padding_row = max_num_seqs
        self.stored_table, self.dense_table = (
            torch.full((max_num_seqs + 1, pages), NO_PAGE, dtype=torch.int32, device=self.device)
            for _ in range(2)
        )
        self.graphs: DecodeGraphs | None = None
        if self.device.type == "cuda" and not eager:
            self.graphs = DecodeGraphs(self._decode_graph, self.device, self.padding_row)

    @torch.inference_mode()
    def run(self, step: StepInput) -> Tensor | None:
        """Logits [rows, vocab] after the tokens that spans want them of; None on ranks above 0."""
        self._set(self.stored_table, step.moves.stored)
        self._set(self.dense_table, step.moves.dense)
        if step.moves.compress:
            pages = self._numbers(step.moves.compress)
            self.cache.compress(pages[:, 0], pages[:, 1])
        positions = [p for span in step.spans for p in range(span.start, span.end)]
        rows = [span.row for span in step.spans for _ in range(len(span))]
        if self.graphs is not None and step.decodes == len(step.spans):
            out = self.graphs.run(step.ids, positions, rows)
            return self._wanted(out, step) if self._has_head else None
        ids, at, lines = self._numbers([step.ids, positions, rows])
        hidden = self.forward(ids, at, self._context(step, at, lines))
        if not self._has_head:
            return None
        return self.decoder.logits(self._wanted(hidden, step))

    def _wanted(self, rows: Tensor, step: StepInput) -> Tensor:
        """Those rows of all tokens [tokens, ...] after which logits are wanted."""
        ends = accumulate(len(span) for span in step.spans)
        each = (range(e - span.logits, e) for e, span in zip(ends, step.spans, strict=True))
        wanted = [row for some in each for row in some]
        return rows if len(wanted) == len(rows) else rows[self._numbers(wanted)]

    def close(self) -> None:
        """Forget the graphs: they refer to this runner, and would keep its memory."""
        self.graphs = None

    @property
    def _has_head(self) -> bool:
        """The other ranks would compute the same logits."""
        return self.decoder.shard.rank == 0

    def _decode_graph(self, numbers: Tensor) -> Tensor:
        """What is captured: ids, positions and rows [3, batch] to logits."""
        ids, positions, rows = numbers
        context = self.decode_context(positions, rows, self.stored_table.shape[1])
        hidden = self.forward(ids, positions, context)
        return self.decoder.logits(hidden) if self._has_head else hidden

    def forward(self, ids: Tensor, positions: Tensor, context: StepContext) -> Tensor:
        attention = StepAttention(self.cache, self.decoder.config.sliding, context)
        return self.decoder.forward(ids, positions, attention)

    # ---- the context of a step ------------------------------------------------------------

    def decode_context(self, positions: Tensor, rows: Tensor, width: int) -> StepContext:
        """For single tokens at positions [N] of the sequences in rows [N]."""
        seq_lens = torch.where(rows == self.padding_row, 0, positions + 1).int()
        stored, dense = (
            table[:, :width].index_select(0, rows)
            for table in (self.stored_table, self.dense_table)
        )
        return StepContext(self._slots(positions, rows), DecodeBatch(stored, dense, seq_lens), ())

    def _context(self, step: StepInput, positions: Tensor, rows: Tensor) -> StepContext:
        decodes = step.decodes
        slots, decode = self._slots(positions, rows), None
        if decodes:
            width = max(span.start for span in step.spans[:decodes]) // BLOCK_TOKENS + 1
            decode = self.decode_context(positions[:decodes], rows[:decodes], width).decode
        firsts, prefills, row = {}, [], decodes
        for span in step.spans[decodes:]:
            prefills.append(self._prefill(span, slice(row, row + len(span))))
            firsts[span.row] = row - span.start
            row += len(span)
        context = StepContext(slots, decode, tuple(prefills))
        if not step.moves.pack:
            return context
        starts = [firsts[line] + block * BLOCK_TOKENS for line, block, _ in step.moves.pack]
        pages = [page * BLOCK_TOKENS for _, _, page in step.moves.pack]
        offsets = torch.arange(BLOCK_TOKENS, device=self.device)
        pack_rows, pack_slots = self._numbers([starts, pages])
        return replace(
            context,
            pack_rows=(pack_rows[:, None] + offsets).flatten(),
            pack_slots=(pack_slots[:, None] + offsets).flatten(),
        )

    def _slots(self, positions: Tensor, rows: Tensor) -> Tensor:
        """Where K and V of these tokens are written; -1 where their block has no such page."""
        table = self.stored_table if self.cache.rule.plain else self.dense_table
        pages = table[rows, positions // BLOCK_TOKENS].long()
        return torch.where(pages < 0, NO_PAGE, pages * BLOCK_TOKENS + positions % BLOCK_TOKENS)

    def _prefill(self, span: Span, rows: slice) -> PrefillSpan:
        rule = replace(self.cache.rule, plain=True) if span.whole_prompt else self.cache.rule
        pattern = Pattern.of(rule, span.start, span.end, self.device)
        near = pattern.near[: len(pattern.near) - len(span)]
        near_table = self.stored_table if rule.plain else self.dense_table
        return PrefillSpan(
            rows,
            pattern,
            self._slots_of(self.stored_table, span.row, pattern.far),
            self._slots_of(near_table, span.row, near),
        )

    def _slots_of(self, table: Tensor, row: int, positions: Tensor) -> Tensor:
        pages = table[row, positions // BLOCK_TOKENS].long()
        return pages * BLOCK_TOKENS + positions % BLOCK_TOKENS

    def _set(self, table: Tensor, entries: list[tuple[int, int, int]]) -> None:
        if entries:
            row, block, page = self._numbers(entries).T
            table[row, block] = page.int()

    def _numbers(self, numbers: Any) -> Tensor:
        return ints(numbers, self.device)
