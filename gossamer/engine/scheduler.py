"""Who computes what in the next step: continuous batching, first come first served.

Prompts are computed in chunks, in the same steps as single tokens of running sequences. When pages
run out, the sequence that came last gives up its pages and later computes everything again.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gossamer.engine.block_manager import BlockManager, Moves
from gossamer.engine.sequence import Sequence, Status
from gossamer.engine.step import PENDING, Decodes, Span, StepInput
from gossamer.kv.pages import NO_PAGE, OutOfPagesError
from gossamer.ops.kv_block import BLOCK_TOKENS


@dataclass(eq=False, slots=True)
class ScheduledChunk:
    """Tokens start to end - 1 of a sequence, and what its pages go through in the step."""

    seq: Sequence
    start: int
    end: int
    stored_before: int
    leaving: list[int]
    kept: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def samples(self) -> bool:
        """Whether this completes the sequence, so that its next token can be sampled."""
        return self.end == len(self.seq)

    @property
    def scores(self) -> bool:
        """Whether log probabilities of prompt tokens come of it."""
        return self.seq.params.prompt_logprobs and self.start < len(self.seq.prompt_ids)


@dataclass(eq=False)
class Schedule:
    """One step. decoding: the sequences of `input.decodes`; chunks: those of `input.chunks`.

    paged: the chunks, and those single tokens that begin or end a block: only there do pages
    change, so that most tokens of a step need no bookkeeping of their own.
    """

    decoding: list[Sequence]
    chunks: list[ScheduledChunk]
    paged: list[ScheduledChunk]
    input: StepInput

    @property
    def sequences(self) -> list[Sequence]:
        """All, in the order of `input.spans`."""
        return [*self.decoding, *(chunk.seq for chunk in self.chunks)]

    @property
    def sampling(self) -> list[Sequence]:
        """Those whose next token is sampled, in the order of the logits."""
        decoded = zip(self.decoding, self.input.decodes.samples, strict=True)
        chunks = zip(self.chunks, self.input.chunks, strict=True)
        return [
            *(seq for seq, samples in decoded if samples),
            *(chunk.seq for chunk, span in chunks if span.sample),
        ]


class Scheduler:
    """Sequences waiting and running, oldest first."""

    def __init__(self, manager: BlockManager, max_num_seqs: int, max_num_batched_tokens: int):
        self.manager = manager
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self.preemptions = 0
        self.cached_tokens = 0

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.waiting

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def free_rows(self) -> int:
        """Sequences that can start beside those that run."""
        return len(self._rows)

    def add(self, seqs: Iterable[Sequence]) -> None:
        self.waiting.extend(seqs)

    def schedule(self) -> Schedule | None:
        """The next step, or None when there is nothing to do."""
        moves, budget = Moves(), self.max_num_batched_tokens
        decoding, paged = list[Sequence](), list[ScheduledChunk]()
        preempted, position = self.preemptions, 0
        while position < len(self.running):  # later ones may be preempted on the way
            seq = self.running[position]
            position += 1
            if budget > 0 and self._within_block(seq):
                decoding.append(seq)
                budget -= 1
                continue
            chunk = self._extend(seq, self._end(seq, budget), moves)
            if chunk is not None:
                paged.append(chunk)
                budget -= len(chunk)
        while self.waiting and self._rows and budget > 0 and self.preemptions == preempted:
            chunk = self._admit(self.waiting[0], budget, moves)
            if chunk is None:
                break
            paged.append(chunk)
            budget -= len(chunk)
        if not decoding and not paged:
            return None
        # Short ones first: they may share a call of attention.
        chunks = sorted((chunk for chunk in paged if not self._decodes(chunk)), key=len)
        decoding += [chunk.seq for chunk in paged if self._decodes(chunk)]
        for chunk in paged:
            chunk.kept = self.manager.keep_for_prefixes(chunk.seq, chunk.start, chunk.end, moves)
        return Schedule(decoding, chunks, paged, self._input(decoding, chunks, moves))

    @staticmethod
    def _within_block(seq: Sequence) -> bool:
        """Whether it decodes a token that neither begins nor ends a block."""
        inside = 0 < seq.computed % BLOCK_TOKENS < BLOCK_TOKENS - 1
        return inside and seq.wanted == 1 and seq.computed >= len(seq.prompt_ids)

    def _decodes(self, chunk: ScheduledChunk) -> bool:
        """A single token that sees all of the past."""
        masked = self.manager.rule.prompt_mask is not None
        after = not masked or chunk.start >= len(chunk.seq.prompt_ids)
        return len(chunk) == 1 and after and not chunk.scores

    def _input(
        self, decoding: list[Sequence], chunks: list[ScheduledChunk], moves: Moves
    ) -> StepInput:
        ids, decodes = list[int](), Decodes()
        for seq in decoding:
            at, known = seq.computed, seq.output_ids
            place = at - len(seq.prompt_ids)
            if place < 0:
                ids.append(seq.prompt_ids[at])
            else:
                ids.append(known[place] if place < len(known) else PENDING)
            decodes.rows.append(seq.row)
            decodes.positions.append(at)
            decodes.samples.append(at + 1 == len(seq))
        for chunk in chunks:
            ids += chunk.seq.tokens(chunk.start, chunk.end)
        return StepInput(ids, decodes, [self._span(chunk) for chunk in chunks], moves)

    def _span(self, chunk: ScheduledChunk) -> Span:
        rule, prompt = self.manager.rule, len(chunk.seq.prompt_ids)
        return Span(
            *(chunk.seq.row, chunk.start, chunk.end, chunk.samples),
            whole_prompt=rule.whole_prompts and chunk.start == 0,
            score=chunk.scores,
            prompt=0 if rule.prompt_mask is None else prompt,
        )

    def _end(self, seq: Sequence, budget: int) -> int:
        """How far the sequence gets with `budget` tokens.

        Chunks end with a block or with the sequence, so that each block is whole in one step.
        """
        prompt = len(seq.prompt_ids)
        if seq.wanted == 0:  # its last token is pending
            return seq.computed
        if self.manager.rule.whole_prompts:  # the prompt at once, then tokens one by one
            end = prompt if seq.computed < prompt else seq.computed + 1
            return end if end - seq.computed <= budget else seq.computed
        if seq.wanted <= budget:
            return len(seq)
        return seq.computed + budget // BLOCK_TOKENS * BLOCK_TOKENS

    def _extend(self, seq: Sequence, end: int, moves: Moves) -> ScheduledChunk | None:
        """Pages up to `end`, at the cost of the last sequences; None when it was itself the last.

        None also when there is no token to compute.
        """
        while end > seq.computed:
            stored_before = len(seq.stored)
            try:
                leaving = self.manager.extend(seq, seq.computed, end, moves)
                return ScheduledChunk(seq, seq.computed, end, stored_before, leaving)
            except OutOfPagesError:
                victim = self.running[-1]
                self._preempt(victim)
                if victim is seq:
                    return None
        return None

    def _admit(self, seq: Sequence, budget: int, moves: Moves) -> ScheduledChunk | None:
        """Start the sequence if all it has so far will find room, so that it is not in vain."""
        found = self.manager.find_prefix(seq)
        end = self._end(seq, budget)
        if end <= seq.computed or not self.manager.has_room(seq, len(seq)):
            self._take_pages(seq)
            return None
        self.cached_tokens += found
        if not seq.preemptions:
            seq.cached = found
        self.waiting.popleft()
        self.running.append(seq)
        seq.status, seq.row = Status.RUNNING, self._rows.pop()
        self.manager.entries(seq, moves)
        chunk = self._extend(seq, end, moves)
        assert chunk is not None, "there was room"
        return chunk

    def _preempt(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._leave(seq, Status.WAITING)
        seq.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(seq)

    # ---- after a step -------------------------------------------------------------------

    def advance(self, schedule: Schedule) -> None:
        """The step is on its way to the executor: the next one can be scheduled."""
        for seq in schedule.sampling:
            seq.pending += 1
        for seq in schedule.decoding:
            seq.computed += 1
        for chunk in schedule.chunks:
            chunk.seq.computed = chunk.end

    def commit(self, schedule: Schedule) -> None:
        """Its tokens are known: complete pages can be found from now on.

        Steps run in order, so whoever finds a page reads it after it was written.
        """
        for chunk in schedule.paged:
            if chunk.seq.status is Status.RUNNING:
                self.manager.commit(
                    *(chunk.seq, chunk.start, chunk.end, chunk.stored_before, chunk.kept)
                )
                self.manager.drop(chunk.leaving)
            else:  # the token before turned out to be its last
                self._drop(chunk)

    def cancel(self, schedule: Schedule) -> None:
        """The step failed: what its pages hold is unknown. Its sequences must be finished."""
        for chunk in schedule.paged:
            self._drop(chunk)

    def _drop(self, chunk: ScheduledChunk) -> None:
        self.manager.drop([*chunk.leaving, *(page for _, page in chunk.kept)])

    def finish(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is; its pages return to the pools."""
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
        elif seq in self.waiting:  # else it was not added yet
            self.waiting.remove(seq)
        self._leave(seq, Status.FINISHED)

    def _leave(self, seq: Sequence, status: Status) -> None:
        self._take_pages(seq)
        if seq.row != NO_PAGE:
            self._rows.append(seq.row)
        seq.status, seq.row = status, NO_PAGE

    def _take_pages(self, seq: Sequence) -> None:
        self.manager.release(seq)
        seq.computed = 0
