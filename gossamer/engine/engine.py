"""The engine: requests in, steps, increments of outputs out. `LLM` is the convenient front."""

import hashlib
import itertools
from collections import deque
from collections.abc import Sequence as Tokens
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gossamer.engine.adapters import Adapters
from gossamer.engine.block_manager import BlockManager
from gossamer.engine.build import Built
from gossamer.engine.config import EngineConfig
from gossamer.engine.grammars import Grammars, Matcher
from gossamer.engine.handoff import Handoff
from gossamer.engine.outputs import Delta, RequestOutput
from gossamer.engine.prompts import checked
from gossamer.engine.request import Completion, Request
from gossamer.engine.runner import Executor
from gossamer.engine.sampler import Choice, choose
from gossamer.engine.sampling_params import SamplingParams
from gossamer.engine.scheduler import Schedule, Scheduler
from gossamer.engine.sequence import Sequence, Status
from gossamer.engine.transfer import ints
from gossamer.kv import KVConfig
from gossamer.ops.kv_block import BLOCK_TOKENS


@dataclass
class Stats:
    """Counts since the start. prompt_tokens: computed in chunks, also again after preemption."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, eq=False)
class _Flight:
    """What a step sampled, not read yet."""

    completions: list[Completion]
    choice: Choice


class Engine:
    """Continuous batching over one executor. Not for several threads at once."""

    def __init__(self, config: EngineConfig, built: Built, executor: Executor, tokenizer: Any):
        self.config, self.built, self.tokenizer = config, built, tokenizer
        self.executor = executor
        self.stats = Stats()
        size, rule = built.size, built.rule
        self.manager = BlockManager(
            rule, size.stored_pages, size.dense_pages, built.root, config.prefix_caching
        )
        self.scheduler = Scheduler(self.manager, config.max_num_seqs, config.max_num_batched_tokens)
        model = built.source.config
        self.grammars = Grammars(tokenizer, model.vocab_size, model.eos_ids)
        self.requests: dict[str, Request] = {}
        self.asynchronous = config.overlaps(built.device)
        self._completions: dict[Sequence, Completion] = {}  # that are not finished
        self._flight: _Flight | None = None
        self._deltas: list[Delta] = []  # of steps that nobody was told of yet
        self.handoff = Handoff.of(config, built, self.manager)
        self._held: deque[tuple[Completion, Delta]] = deque()  # ends that wait for the handoff
        self._numbers = itertools.count()
        self.adapters = Adapters(config, executor.set_adapter, self._completions)

    # ---- requests -----------------------------------------------------------------------

    def add_request(
        self,
        prompt_ids: Tokens[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        prompt: str | None = None,
        lora: str | None = None,
    ) -> str:
        """Queue a request; returns its id.

        lora: the name of an adapter; UnknownAdapterError if there is none of that name. ValueError
        for a prompt that cannot be served, and for a grammar that cannot be compiled; `grammars`
        can do that before, in another thread.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params is {type(params).__name__}; must be SamplingParams")
        adapter = self.adapters.find(lora)
        number = next(self._numbers)
        request_id = f"request-{number}" if request_id is None else request_id
        if request_id in self.requests:
            raise ValueError(f"request_id is {request_id!r}, which is running; must be a new one")
        ids = checked(prompt_ids, self.longest_prompt, self.built.source.config.vocab_size)
        tokenizer = self.tokenizer if params.detokenize else None
        if params.stop and tokenizer is None:
            raise ValueError(f"stop is {params.stop}; must be empty for a model without tokenizer")
        self._check_bias(params)
        matchers = self._matchers(params)
        request = Request(RequestOutput(request_id, prompt, list(ids), []))
        if params.prompt_logprobs:
            request.output.prompt_logprobs = [None] * len(ids)
            request.output.prompt_top = [()] * len(ids) if params.logprobs else None
        seqs = list[Sequence]()
        for index in range(params.n):
            # Without a seed of its own, what a request samples depends on when it came, no more.
            base = (self.config.seed, number) if params.seed is None else (params.seed,)
            room = self.built.max_model_len - len(ids)
            limit = room if params.max_tokens is None else min(room, params.max_tokens)
            seq = Sequence(request_id, index, ids, params, _mixed_seed(*base, index), limit)
            seq.slot, seq.salt = adapter.slot, adapter.salt
            eos = self.built.source.config.eos_ids
            self._completions[seq] = request.start(seq, tokenizer, eos, matchers[index])
            seqs.append(seq)
        if self.handoff is not None:
            self.handoff.look_up(seqs)
        else:
            self.scheduler.add(seqs)
        self.requests[request_id] = request
        return request_id

    def _check_bias(self, params: SamplingParams) -> None:
        vocab = self.built.source.config.vocab_size
        for token in params.logit_bias or ():
            if token >= vocab:
                raise ValueError(f"logit_bias has token {token}; must be 0 to {vocab - 1}")

    def _matchers(self, params: SamplingParams) -> list[Matcher | None]:
        """One for each output."""
        wanted = params.structured_outputs
        if wanted is None:
            return [None] * params.n
        return [self.grammars.matcher(wanted) for _ in range(params.n)]

    @property
    def longest_prompt(self) -> int:
        """In tokens; one more must fit the context."""
        longest = self.built.max_model_len - 1
        if self.built.rule.whole_prompts:
            longest = min(longest, self.config.max_num_batched_tokens)
        return longest

    def abort(self, request_id: str, index: int | None = None) -> list[Delta]:
        """End a request now, or one of its outputs; nothing for what is not running (any more)."""
        request = self.requests.get(request_id)
        if request is None:
            return []
        chosen = [c for seq, c in request.running.items() if index is None or seq.index == index]
        return [self._end(completion, completion.end("abort")) for completion in chosen]

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do."""
        left: tuple[Sized, ...] = (self.scheduler, self._deltas, self._held)
        return any(map(len, left)) or (self.handoff is not None and self.handoff.waiting > 0)

    # ---- steps --------------------------------------------------------------------------

    def step(self) -> list[Delta]:
        """Compute one batch; what it, or the one before it, added to outputs.

        With asynchronous scheduling a batch is scheduled and sent to the executor before the tokens
        of the one before it are known here: they are read while the device computes.

        An error of the executor is raised after the requests of this step have been ended with it,
        so that nothing leaks and others can go on if the executor can.
        """
        if self.handoff is not None:
            self._exchange(self.handoff)
        schedule = self.scheduler.schedule()
        if schedule is not None:
            try:
                logits = self._score(schedule, self.executor.run(schedule.input))
                self.scheduler.advance(schedule)
                self._land()
                self._flight = self._sample(schedule, logits)
            except BaseException as error:
                self._fail(schedule, error)
                raise
            self.scheduler.commit(schedule)
            self._publish(schedule)
            self._count(schedule)
        if schedule is None or not self.asynchronous:
            self._land()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _exchange(self, handoff: Handoff) -> None:
        """Queue those whose prompts were looked up, and tell the ends of those that are published.

        Waits a moment when there is nothing else to do.
        """
        if (handoff.waiting or self._held) and not (len(self.scheduler) or self._deltas):
            handoff.wait()
        self.scheduler.add(handoff.arrived(self.scheduler))
        while self._held and not handoff.holds(self._held[0][0].seq):
            completion, delta = self._held.popleft()
            if completion.seq in self._completions:  # else it was aborted
                self._deltas.append(self._end(completion, delta))

    def _publish(self, schedule: Schedule) -> None:
        """Prompts that this step completed."""
        if self.handoff is not None:
            for chunk in schedule.paged:
                seq = chunk.seq
                if chunk.end == len(seq.prompt_ids) and seq.status is Status.RUNNING:
                    self.handoff.publish(seq)

    def _sample(self, schedule: Schedule, logits: Tensor) -> _Flight | None:
        """Choose the next tokens of those that go on; they stay on the device for now."""
        sampling = schedule.sampling
        going = [i for i, seq in enumerate(sampling) if seq.status is Status.RUNNING]
        if not going:
            return None
        if len(going) < len(sampling):
            sampling = [sampling[i] for i in going]
            logits = logits[ints(going, logits.device)]
        completions = [self._completions[seq] for seq in sampling]
        choice = choose(logits, [completion.row for completion in completions])
        if self.asynchronous:
            self.executor.keep([seq.row for seq in sampling], choice.tokens)
        return _Flight(completions, choice)

    def _land(self) -> None:
        """The tokens of the step on its way become outputs; who was aborted meanwhile gets none."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        try:
            sampled = flight.choice.read()
        except BaseException as error:
            self._end_all([completion.seq for completion in flight.completions], error)
            raise
        for completion, token in zip(flight.completions, sampled, strict=True):
            seq = completion.seq
            if seq.status is Status.FINISHED:
                continue
            seq.pending -= 1
            self.stats.output_tokens += 1
            delta = completion.take(token)
            if delta.finish_reason is None:
                self._deltas.append(delta)
            elif self.handoff is not None and (self._held or self.handoff.holds(seq)):
                self.scheduler.finish(seq)
                self._held.append((completion, delta))
            else:
                self._deltas.append(self._end(completion, delta))

    def _score(self, schedule: Schedule, logits: Tensor) -> Tensor:
        """Prompt tokens get their log probabilities; returns the logits to sample from."""
        if not any(span.score for span in schedule.input.chunks):
            return logits
        last = list(range(sum(schedule.input.decodes.samples)))
        row = len(last)
        for chunk, span in zip(schedule.chunks, schedule.input.chunks, strict=True):
            if span.score:
                self._completions[chunk.seq].score(chunk.start, logits[row : row + span.logits])
            row += span.logits
            if span.sample:
                last.append(row - 1)
        return logits[last]

    def _end(self, completion: Completion, delta: Delta) -> Delta:
        seq = completion.seq
        self.scheduler.finish(seq)
        request = self.requests[seq.request_id]
        del request.running[seq], self._completions[seq]
        if not request.running:
            del self.requests[seq.request_id]
        return delta

    def _fail(self, schedule: Schedule, error: BaseException) -> None:
        self.scheduler.cancel(schedule)
        try:
            self._land()  # the step before went well, unless the device is gone
        finally:
            self._end_all(schedule.sequences, error)
        # Who ended with the error learns that, and nothing of the step before.
        self._deltas = [d for d in self._deltas if d.output.finish_reason != "error"]

    def _end_all(self, sequences: list[Sequence], error: BaseException) -> None:
        message = f"{type(error).__name__}: {error}"
        for seq in sequences:
            if seq.status is not Status.FINISHED:
                completion = self._completions[seq]
                self._end(completion, completion.end("error", error=message))

    def _count(self, schedule: Schedule) -> None:
        self.stats.steps += 1
        self.stats.prompt_tokens += sum(len(c) for c in schedule.chunks if len(c) > 1)
        self.stats.cached_tokens = self.scheduler.cached_tokens
        self.stats.preemptions = self.scheduler.preemptions

    # ---- memory -------------------------------------------------------------------------

    @property
    def kv_bytes(self) -> int:
        """Bytes of the pages in use, on all ranks."""
        size, ranks = self.built.size, self.config.tensor_parallel_size
        stored = self.manager.stored.in_use * size.stored_bytes
        return ranks * (stored + self.manager.dense.in_use * size.dense_bytes)

    @property
    def kv_bytes_dense(self) -> int:
        """What the same tokens would take in a plain cache."""
        blocks = sum(-(-seq.computed // BLOCK_TOKENS) for seq in self.scheduler)
        return blocks * self.built.size.dense_bytes * self.config.tensor_parallel_size

    @property
    def kv(self) -> KVConfig:
        return self.built.kv

    def close(self) -> None:
        """Abort what is running and end the executor's processes."""
        for request_id in list(self.requests):
            self.abort(request_id)
        self._flight, self._deltas = None, []
        self._held.clear()
        if self.handoff is not None:
            self.handoff.close()
        self.executor.close()


def _mixed_seed(*parts: int) -> int:
    """64 bits, signed, of any integers."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
