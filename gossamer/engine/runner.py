"""Runs the model for one step: page tables on the device, what attention reads, CUDA graphs."""

from dataclasses import replace
from itertools import takewhile
from typing import Any, Protocol

import torch
from torch import Tensor

from gossamer.engine.adapter_rows import AdapterRows
from gossamer.engine.adapters import SetAdapter
from gossamer.engine.graphs import DecodeGraphs
from gossamer.engine.packing import packed_chunks, packs
from gossamer.engine.pieces import StepPieces
from gossamer.engine.step import PENDING, Ints, Span, StepInput
from gossamer.engine.transfer import ints
from gossamer.kv.cache_step import CacheStep, Chunk, DecodeBatch, PackedChunks
from gossamer.kv.paged_cache import PagedCache, slots_of
from gossamer.kv.pages import NO_PAGE
from gossamer.kv.rule import ChunkMask
from gossamer.models import Decoder, LoRABank, Projection
from gossamer.models.lora import LoRA
from gossamer.ops.kv_block import BLOCK_TOKENS


class ModelRunner:
    """One rank's model and cache.

    Page tables live on the device, a row per running sequence and one of NO_PAGE for padding; a
    step only sends what changes in them. latest: the token that was sampled last, by row, for steps
    that are on their way before the host knows it.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: PagedCache,
        max_num_seqs: int,
        max_model_len: int,
        eager: bool,
        bank: LoRABank | None = None,
    ) -> None:
        self.decoder, self.cache = decoder, cache
        self.device = torch.device(decoder.device)
        self.max_model_len = max_model_len
        pages = -(-max_model_len // BLOCK_TOKENS)
        self.padding_row = max_num_seqs
        self.stored_table, self.dense_table = (
            torch.full((max_num_seqs + 1, pages), NO_PAGE, dtype=torch.int32, device=self.device)
            for _ in range(2)
        )
        self.latest = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=self.device)
        self.adapters = AdapterRows(bank, max_num_seqs + 1, self.device)
        self.near_table = self.stored_table if cache.rule.plain else self.dense_table
        self.graphs: DecodeGraphs | None = None
        # By how many adapters they are for; made by warm_up, where they gain.
        self.pieces: dict[int, StepPieces] = {}
        if self.device.type == "cuda" and not eager:
            self.graphs = DecodeGraphs(self._decode_graph, self.device, self.padding_row)

    @torch.inference_mode()
    def run(self, step: StepInput) -> Tensor | None:
        """Logits [rows, vocab] after the tokens that spans want them of; None on ranks above 0."""
        self._set(self.stored_table, step.moves.stored)
        self._set(self.dense_table, step.moves.dense)
        self.adapters.enter(step.moves.adapters)
        if step.moves.compress:
            dense, stored = self._numbers(step.moves.compress).T
            self.cache.compress(slots_of(dense), slots_of(stored))
        if self.graphs is not None and not step.chunks:
            decodes = step.decodes
            kind = self.adapters.kind(self.adapters.present(decodes.rows))
            out = self.graphs.run(step.ids, decodes.positions, decodes.rows, kind)
            return self._wanted(out, step) if self._has_head else None
        numbers = step.numbers
        ids, at, rows = self._numbers(numbers)
        hidden = self._hidden(
            self._known(ids, rows), at, self._cache_step(step, at, rows), numbers[2]
        )
        if not self._has_head:
            return None
        return self.decoder.logits(self._wanted(hidden, step))

    def keep(self, rows: list[int], tokens: Tensor) -> None:
        """Remember what was sampled for these rows: int64, negative where nothing was."""
        self.latest[self._numbers(rows)] = tokens.clamp(min=0)

    def _known(self, ids: Tensor, rows: Tensor) -> Tensor:
        return torch.where(ids == PENDING, self.latest[rows], ids)

    def _wanted(self, rows: Tensor, step: StepInput) -> Tensor:
        """Those rows of all tokens [tokens, ...] after which logits are wanted."""
        wanted = step.wanted
        return rows if wanted is None else rows[self._numbers(wanted)]

    def close(self) -> None:
        """Forget the graphs: they refer to this runner, and would keep its memory."""
        self.graphs, self.pieces = None, {}

    def set_adapter(self, change: SetAdapter) -> None:
        """After the steps that were run so far, and for those that follow."""
        assert self.adapters.bank is not None, "slots are given out by max_loras"
        self.adapters.bank.set(*change)

    @property
    def _has_head(self) -> bool:
        """The other ranks would compute the same logits."""
        return self.decoder.shard.rank == 0

    def _decode_graph(self, numbers: Tensor, kind: int) -> Tensor:
        """What is captured: ids, positions and rows [3, batch] to logits."""
        ids, positions, rows = numbers
        step = self.decode_step(positions, rows, self.stored_table.shape[1])
        lora = self.adapters.masked(self.adapters.slots[rows], kind)
        hidden = self.forward(self._known(ids, rows), positions, step, lora)
        return self.decoder.logits(hidden) if self._has_head else hidden

    def forward(
        self, ids: Tensor, positions: Tensor, step: CacheStep, lora: LoRA | None = None
    ) -> Tensor:
        """Hidden states after the last layer."""
        sliding, scale = self.decoder.config.sliding, self.cache.spec.shape.head_dim**-0.5
        sole = step.sole_decode

        def attend(layer: int, projection: Projection) -> Tensor:
            if sole is not None:
                q = self.cache.append(layer, projection.qkv, projection.rotation, step.slots)
                return self.cache.decode(layer, q, sole, scale, sliding[layer])
            return self.cache.attend(
                layer, *self.turned(layer, projection), step, scale, sliding[layer]
            )

        return self.decoder.forward(ids, positions, attend, lora)

    def turned(self, layer: int, projection: Projection) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as they are stored and attended to."""
        q, k, v = projection.rotated()
        return *self.cache.turn(layer, q, k), v

    def _hidden(self, ids: Tensor, positions: Tensor, step: CacheStep, rows: Ints) -> Tensor:
        """As `forward`, by graphs where there are some for so many tokens."""
        present = self.adapters.present(rows)
        pieces = self.pieces.get(self.adapters.kind(present))
        if pieces is None or not pieces.takes(len(ids)):
            return self.forward(ids, positions, step, self.adapters.eager(present, rows))
        sliding, scale = self.decoder.config.sliding, self.cache.spec.shape.head_dim**-0.5

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Tensor:
            return self.cache.attend(layer, q, k, v, step, scale, sliding[layer], out)

        slots = self.adapters.of_tokens(rows) if present else None
        return pieces.run(ids, positions, attend, slots)

    # ---- what attention reads ---------------------------------------------------------------

    def decode_step(self, positions: Tensor, rows: Tensor, width: int) -> CacheStep:
        """For single tokens at positions [N] of the sequences in rows [N]."""
        seq_lens = torch.where(rows == self.padding_row, 0, positions + 1).int()
        stored, dense = (
            table[:, :width].index_select(0, rows)
            for table in (self.stored_table, self.dense_table)
        )
        return CacheStep(self._slots(positions, rows), DecodeBatch(stored, dense, seq_lens))

    def _cache_step(self, step: StepInput, positions: Tensor, rows: Tensor) -> CacheStep:
        decodes = len(step.decodes)
        slots, decode = self._slots(positions, rows), None
        if decodes:
            width = max(step.decodes.positions) // BLOCK_TOKENS + 1
            decode = self.decode_step(positions[:decodes], rows[:decodes], width).decode
        firsts, chunks, token, packed = {}, [], decodes, self._packed(step)
        for span in step.chunks:
            if packed is None or token >= packed.tokens.stop:
                chunks.append(self._chunk(span, slice(token, token + len(span))))
            firsts[span.row] = token - span.start
            token += len(span)
        cache_step = CacheStep(slots, decode, packed, tuple(chunks))
        if not step.moves.pack:
            return cache_step
        starts = [firsts[row] + block * BLOCK_TOKENS for row, block, _ in step.moves.pack]
        offsets = torch.arange(BLOCK_TOKENS, device=self.device)
        return replace(
            cache_step,
            pack_tokens=(self._numbers(starts)[:, None] + offsets).flatten(),
            pack_slots=slots_of(self._numbers([page for *_, page in step.moves.pack])),
        )

    def _slots(self, positions: Tensor, rows: Tensor, table: Tensor | None = None) -> Tensor:
        """Where K and V of these tokens lie, by default dense; -1 where their block has no page."""
        table = self.near_table if table is None else table
        pages = table[rows, positions // BLOCK_TOKENS].long()
        return torch.where(pages < 0, NO_PAGE, pages * BLOCK_TOKENS + positions % BLOCK_TOKENS)

    def _mask(self, span: Span) -> ChunkMask:
        rule = self.cache.rule
        if span.whole_prompt:
            rule = replace(rule, plain=True)
        return rule.chunk(span.start, span.end, span.prompt)

    def _packed(self, step: StepInput) -> PackedChunks | None:
        """The first chunks, as far as they can share a call."""
        chunks = ((span, self._mask(span)) for span in step.chunks)
        spans = [*takewhile(lambda chunk: packs(*chunk, self.cache), chunks)]
        if not spans:
            return None
        return packed_chunks(
            *(spans, len(step.decodes), self.cache.packing, self.device),
            near=self._slots,
            stored=lambda at, rows: self._slots(at, rows, self.stored_table),
        )

    def _chunk(self, span: Span, tokens: slice) -> Chunk:
        mask = self._mask(span)
        past = [(False, self._past(self.stored_table, span.row, mask.far))]
        past += [(True, self._past(self.near_table, span.row, keys)) for keys in mask.past]
        return Chunk(tokens, mask, tuple((dense, slots) for dense, slots in past if len(slots)))

    def _past(self, table: Tensor, row: int, keys: range) -> Tensor:
        """Slots of the keys at these positions."""
        positions = torch.arange(keys.start, keys.stop, device=self.device)
        pages = table[row, positions // BLOCK_TOKENS].long()
        return pages * BLOCK_TOKENS + positions % BLOCK_TOKENS

    def _set(self, table: Tensor, entries: list[tuple[int, int, int]]) -> None:
        if entries:
            row, block, page = self._numbers(entries).T
            table[row, block] = page.int()

    def _numbers(self, numbers: Any) -> Tensor:
        return ints(numbers, self.device)


class Executor(Protocol):
    """Runs steps in order."""

    def run(self, step: StepInput) -> Tensor:
        """Logits [rows, vocab] after the tokens that spans want them of, in order."""
        ...

    def keep(self, rows: list[int], tokens: Tensor) -> None:
        """Tokens [rows] that were sampled after them: what PENDING means in the next step."""
        ...

    def set_adapter(self, change: SetAdapter) -> None:
        """On all ranks, between two steps."""
        ...

    def close(self) -> None:
        """End everything that was started; can be called twice."""
        ...


class LocalExecutor:
    """The whole model in this process."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def run(self, step: StepInput) -> Tensor:
        logits = self._runner.run(step)
        assert logits is not None, "rank 0 has logits"
        return logits

    @torch.inference_mode()
    def keep(self, rows: list[int], tokens: Tensor) -> None:
        self._runner.keep(rows, tokens)

    def set_adapter(self, change: SetAdapter) -> None:
        self._runner.set_adapter(change)

    def close(self) -> None:
        self._runner.close()
