"""An engine without a model: its pages hold hashes of tokens, and every read of one is checked.

What K and V of a token depend on is the token and all before it, so a slot holds a hash of those.
The fake does to its pools what the runner does, in the same order: set table entries, compress,
write and pack, attend. A page that is given to another too early, or named too early, or never
written, shows up as a slot that does not hold what the sequence's own tokens say.
"""

import random
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from gossamer.engine.build import Built
from gossamer.engine.cache_size import CacheSize
from gossamer.engine.config import EngineConfig
from gossamer.engine.engine import Engine
from gossamer.engine.sequence import NO_PAGE, Sequence
from gossamer.engine.step import PENDING, Span, StepInput
from gossamer.kv import KVConfig
from gossamer.kv.rule import CacheRule
from gossamer.ops.kv_block import BLOCK_TOKENS

VOCAB = 50
PLAIN = "dense:fp32"
START = 12345


class Truth:
    """What the pages of the running sequences should hold: from their tokens, not their pages."""

    def __init__(self) -> None:
        self.scheduler: Any = None
        self._hashes: WeakKeyDictionary[Sequence, list[int]] = WeakKeyDictionary()
        self._pending: WeakKeyDictionary[Sequence, tuple[int, int]] = WeakKeyDictionary()

    def of(self, row: int) -> tuple[Sequence, list[int]]:
        """The sequence in this row and, for each token of it, a hash of all up to there."""
        [seq] = [seq for seq in self.scheduler.running if seq.row == row]
        known = self._hashes.setdefault(seq, [])
        position, token = self._pending.get(seq, (len(seq), 0))
        assert seq.tokens(position, position + 1) in ([], [token]), "what the device was told"
        for token in seq.tokens(len(known), len(seq)):
            known.append(hash((known[-1] if known else START, token)))
        return seq, known

    def add_pending(self, row: int, position: int, token: int) -> None:
        """A token of this row that the executor knows before its sequence does."""
        seq, known = self.of(row)
        if len(known) == position:
            known.append(hash((known[-1], token)))
            self._pending[seq] = (position, token)


class FakeExecutor:
    """Pools of hashes."""

    def __init__(self, kv: KVConfig, size: CacheSize, max_num_seqs: int, blocks: int) -> None:
        self.kv, self.plain = kv, CacheRule.of(kv, torch.float32).plain
        self.stored = [[0] * BLOCK_TOKENS for _ in range(size.stored_pages)]
        self.dense = [[0] * BLOCK_TOKENS for _ in range(size.dense_pages)]
        self.stored_table = [[NO_PAGE] * blocks for _ in range(max_num_seqs)]
        self.dense_table = [[NO_PAGE] * blocks for _ in range(max_num_seqs)]
        self.truth = Truth()
        self.latest: dict[int, int] = {}
        self.reads = 0

    def run(self, step: StepInput) -> torch.Tensor:
        assert len(step.ids) == sum(len(span) for span in step.spans)
        assert len({span.row for span in step.spans}) == len(step.spans)
        for table, entries in (
            (self.stored_table, step.moves.stored),
            (self.dense_table, step.moves.dense),
        ):
            for row, block, page in entries:
                table[row][block] = page
        # All at once, as the kernel does: a source is read before any target is written.
        sources = [list(self.dense[page]) for page, _ in step.moves.compress]
        targets = [page for _, page in step.moves.compress]
        targets += [page for _, _, page in step.moves.pack]
        assert len(set(targets)) == len(targets), "a stored page is written twice in a step"
        for held, (_, page) in zip(sources, step.moves.compress, strict=True):
            self.stored[page] = held
        rows, own, first = {}, [], 0
        for span in step.spans:
            tokens = step.ids[first : first + len(span)]
            first += len(span)
            if tokens == [PENDING]:
                tokens = [self.latest[span.row]]
                self.truth.add_pending(span.row, span.start, tokens[0])
            own.append(self._history(span, tokens))
            rows[span.row] = (span, own[-1])
        written: set[tuple[int, int]] = set()
        for span, hashes in zip(step.spans, own, strict=True):
            self._write(span, hashes, written)
        for row, block, page in step.moves.pack:
            span, hashes = rows[row]
            at = block * BLOCK_TOKENS - span.start
            assert at >= 0, "only what this step computes can be packed"
            assert len(hashes) >= at + BLOCK_TOKENS, "only whole blocks can be packed"
            self.stored[page] = hashes[at : at + BLOCK_TOKENS]
        seen = [self._attend(span, h) for span, h in zip(step.spans, own, strict=True)]
        logits = [s for s, span in zip(seen, step.spans, strict=True) if span.sample]
        return torch.stack(logits) if logits else torch.empty(0, VOCAB)

    def set_adapter(self, change: Any) -> None:
        """It has no model that could be adapted."""

    def keep(self, rows: list[int], tokens: torch.Tensor) -> None:
        self.latest.update(zip(rows, tokens.tolist(), strict=True))

    def close(self) -> None:
        pass

    def _history(self, span: Span, tokens: list[int]) -> list[int]:
        """What these tokens put into the cache; that they are the sequence's own is checked."""
        seq, truth = self.truth.of(span.row)
        assert seq.tokens(span.start, span.end) in (tokens, tokens[:-1])
        return truth[span.start : span.end]

    def _write(self, span: Span, hashes: list[int], written: set[tuple[int, int]]) -> None:
        pool, table = self.dense, self.dense_table
        if self.plain:
            pool, table = self.stored, self.stored_table
        for position, value in enumerate(hashes, span.start):
            page = table[span.row][position // BLOCK_TOKENS]
            if page == NO_PAGE:
                continue
            slot = (page, position % BLOCK_TOKENS)
            assert slot not in written, f"slot {slot} is written twice in a step"
            written.add(slot)
            pool[page][slot[1]] = value

    def _attend(self, span: Span, own: list[int]) -> torch.Tensor:
        """Logits after the last token, from everything that the pages say it sees."""
        _, truth = self.truth.of(span.row)
        seen: list[Any] = []
        for position in self._queries(span):
            seen = []
            for key in range(0, position + 1, BLOCK_TOKENS):
                end = min(key + BLOCK_TOKENS, position + 1)
                dense = self.plain or span.whole_prompt or self._sees_dense(position, key)
                held = self._read(span, own, key, end, dense)
                self.reads += 1
                assert held == truth[key:end], (
                    f"row {span.row}: the query at {position} of {span} reads wrong "
                    f"{'dense' if dense else 'stored'} keys at {key} to {end - 1}"
                )
                seen.append((dense, *held))
        generator = np.random.default_rng(abs(hash(tuple(seen))))
        return torch.from_numpy(generator.standard_normal(VOCAB, dtype=np.float32))

    @staticmethod
    def _queries(span: Span) -> list[int]:
        """The last query of each block: those before it see no more of the same blocks."""
        ends = range((span.start // BLOCK_TOKENS + 1) * BLOCK_TOKENS, span.end, BLOCK_TOKENS)
        return [*(end - 1 for end in ends), span.end - 1]

    def _sees_dense(self, query: int, key: int) -> bool:
        at: Any = (query, key)  # plain integers will do
        return bool(self.kv.sees_dense(*at))

    def _read(self, span: Span, own: list[int], key: int, end: int, dense: bool) -> list[int]:
        """Keys `key` to end - 1. A chunk has its own ones at hand and need not read them."""
        if dense and key >= span.start and len(span) > 1:
            return own[key - span.start : end - span.start]
        pool, table = self.stored, self.stored_table
        if dense and not self.plain:
            pool, table = self.dense, self.dense_table
        page = table[span.row][key // BLOCK_TOKENS]
        assert page != NO_PAGE, f"row {span.row} has no page for keys from {key} (dense: {dense})"
        return pool[page][: end - key]


class FakeCopies:
    """Pages of a FakeExecutor as tensors; see HostCopies."""

    def __init__(self, executor: FakeExecutor) -> None:
        self._pools = {False: executor.stored, True: executor.dense}

    def page_bytes(self, dense: bool) -> int:
        return BLOCK_TOKENS * 8

    def empty(self, dense: bool) -> torch.Tensor:
        return torch.zeros(BLOCK_TOKENS, dtype=torch.int64)

    def read(self, dense: bool, page: int) -> torch.Tensor:
        return torch.tensor(self._pools[dense][page])

    def write(self, copy: torch.Tensor, dense: bool, page: int) -> None:
        self._pools[dense][page] = copy.tolist()

    def recorded(self) -> None:
        return None


def fake_engine(
    spec: str,
    stored: int,
    dense: int,
    max_num_seqs: int = 8,
    budget: int = 256,
    longest: int = 512,
    prefix_caching: bool = True,
    asynchronous: bool = False,
    eos_ids: tuple[int, ...] = (),
) -> Engine:
    """An engine over pools of so many pages, served by a FakeExecutor."""
    kv = KVConfig.parse(spec)
    options = EngineConfig(
        model="fake",
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        prefix_caching=prefix_caching,
        async_scheduling=asynchronous,
    )
    config = SimpleNamespace(vocab_size=VOCAB, eos_ids=eos_ids)
    source: Any = SimpleNamespace(name="fake", config=config)
    size = CacheSize(stored, dense, 1, 1)
    runner: Any = None
    cpu = torch.device("cpu")
    rule = CacheRule.of(kv, torch.float32)
    built = Built(source, kv, torch.float32, cpu, size, longest, b"root", rule, runner)
    executor = FakeExecutor(kv, size, max_num_seqs, -(-longest // BLOCK_TOKENS))
    engine = Engine(options, built, executor, None)
    executor.truth.scheduler = engine.scheduler
    return engine


def check_pages(engine: Engine) -> None:
    """Pages in use are those that sequences have, each as often as they have it."""
    for name in ("stored", "dense"):
        pool, held = getattr(engine.manager, name), {}
        for seq in engine.scheduler:
            for page in getattr(seq, name):
                if page != NO_PAGE:
                    held[page] = held.get(page, 0) + 1
        assert pool.in_use == len(held), f"{name}: {pool.in_use} pages in use, {len(held)} held"
        assert {p: n for p, n in enumerate(pool._references) if n} == held


def random_prompt(rng: random.Random, templates: list[list[int]], longest: int) -> list[int]:
    """Often the beginning of a template, so that prompts share prefixes; then something else."""
    tokens: list[int] = []
    if rng.random() < 0.7:
        template = rng.choice(templates)
        tokens = template[: rng.randrange(1, len(template))]
    tokens = tokens + [rng.randrange(VOCAB) for _ in range(rng.randrange(0, 40))]
    return (tokens or [7])[:longest]
