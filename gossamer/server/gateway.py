"""The engines as the event loop sees them: admission, tickets, draining."""

import asyncio
import math
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from gossamer.engine import LLM, Engine, SamplingParams
from gossamer.kv import KVConfig
from gossamer.server.errors import APIError, failed
from gossamer.server.events import Event, Job
from gossamer.server.loop import EngineLoop
from gossamer.server.metrics import Metrics
from gossamer.server.settings import Limits
from gossamer.server.tokens import Tokens

FAILING = 3  # steps in a row that raised; more is not bad luck
LONGEST_RETRY = 60  # seconds
SMOOTHING = 0.1  # weight of the latest request in the mean duration


class Gateway:
    """Takes requests for engines that run in a thread of their own.

    engines: by the KV spec they were asked for; the first is the one of requests that name none.
    To be used in one event loop, between `start` and `close`.
    """

    def __init__(self, engines: Mapping[str, LLM], limits: Limits, metrics: Metrics) -> None:
        self.llms, self.limits, self.metrics = dict(engines), limits, metrics
        self.engines: dict[str, Engine] = {name: llm.engine for name, llm in engines.items()}
        self.tokens = Tokens(next(iter(engines.values())).tokenizer)
        self.draining = False
        self.started = time.time()
        self.loop = EngineLoop(self.engines, self._from_thread, metrics)
        self._tickets: dict[Job, Ticket] = {}
        self._active = dict.fromkeys(engines, 0)  # sequences that run or wait
        self._duration = 1.0
        self._events: asyncio.AbstractEventLoop | None = None
        metrics.watch(lambda: self.loop.snapshots)

    async def start(self) -> None:
        self._events = asyncio.get_running_loop()
        self.loop.start()

    async def close(self) -> None:
        """End what is running, the thread and the engines."""
        await asyncio.to_thread(self.loop.close)
        self.tokens.close()
        for llm in self.llms.values():
            llm.close()

    @property
    def status(self) -> str:
        """ok, draining or failing."""
        if self.draining:
            return "draining"
        broken = any(count >= FAILING for count in self.loop.failures.values())
        return "failing" if broken else "ok"

    @property
    def in_flight(self) -> int:
        """Sequences that are not finished."""
        return sum(self._active.values())

    def lane(self, kv: str | None) -> str:
        """The engine with this cache. APIError for one that is not loaded."""
        if kv is None or kv in self.engines:
            return next(iter(self.engines)) if kv is None else kv
        for name, engine in self.engines.items():
            with suppress(ValueError):
                if KVConfig.of(kv, engine.built.dtype) == engine.kv:
                    return name
        loaded = ", ".join(self.engines)
        raise APIError(400, f"kv is {kv!r}; loaded: {loaded}", param="kv", code="kv_not_loaded")

    def open(
        self, lane: str, prompts: Sequence[tuple[int, ...]], params: SamplingParams
    ) -> "Ticket":
        """Queue prompts. APIError: 429 when the queue is full, 503 while draining."""
        count = len(prompts) * params.n
        room = self.engines[lane].options.max_num_seqs + self.limits.queue
        most = min(room, self.limits.sequences)
        if count > most:
            raise APIError(400, f"prompts times n is {count}; must be 1 to {most}", param="n")
        if self.draining:
            raise APIError(503, "the server is about to stop", headers={"Retry-After": "5"})
        if self._active[lane] + count > room:
            raise APIError(
                429,
                f"{self._active[lane]} sequences run or wait; must be at most {room} with the "
                f"{count} of this request",
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(lane))},
            )
        name = uuid.uuid4().hex
        jobs = [Job(f"{name}-{i}", lane, ids, params) for i, ids in enumerate(prompts)]
        ticket = Ticket(self, jobs, params.n)
        self._active[lane] += count
        for job in jobs:
            self._tickets[job] = ticket
            self.loop.add(job)
        return ticket

    def _retry_after(self, lane: str) -> int:
        """When about half of the queue will be gone."""
        rows = self.engines[lane].options.max_num_seqs
        seconds = self._duration * max(1.0, self._active[lane] / rows) / 2
        return max(1, min(LONGEST_RETRY, math.ceil(seconds)))

    def over(self, job: Job, *, seconds: float | None = None) -> bool:
        """Count a job as finished; whether it was running."""
        if self._tickets.pop(job, None) is None:
            return False
        self._active[job.lane] -= job.params.n
        if seconds is not None:
            self._duration += SMOOTHING * (seconds - self._duration)
        return True

    def _from_thread(self, events: list[tuple[Job, Event]]) -> None:
        assert self._events is not None, "started"
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._events.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: list[tuple[Job, Event]]) -> None:
        for job, event in events:
            ticket = self._tickets.get(job)
            if ticket is not None:
                ticket.put(job, event)


class Ticket:
    """Events of the prompts of one HTTP request; leaving the `with` block aborts the rest.

    Iterating gives (output number, event), outputs of all prompts counted through. It raises
    APIError when an output fails or the time is up.
    """

    def __init__(self, gateway: Gateway, jobs: list[Job], n: int) -> None:
        self._gateway, self._n = gateway, n
        self._first = {job: i * n for i, job in enumerate(jobs)}
        self._open = set(jobs)
        self._came = asyncio.get_running_loop().time()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def put(self, job: Job, event: Event) -> None:
        """Called by the gateway, in the event loop."""
        if event.usage is not None or event.failure is not None:
            self._open.discard(job)
            took = asyncio.get_running_loop().time() - self._came
            self._gateway.over(job, seconds=took)
        self._events.put_nowait((self._first[job] + event.index, event))

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        limit = self._gateway.limits.timeout
        while self._open or not self._events.empty():
            try:
                async with asyncio.timeout_at(self._came + limit):
                    number, event = await self._events.get()
            except TimeoutError:
                raise APIError(
                    504, f"the request took longer than {limit:g} seconds", code="timeout"
                ) from None
            if event.failure is not None:
                raise failed(event.failure)
            yield number, event

    def abort(self) -> None:
        """End what is still running; its pages return before the next step."""
        for job in self._open:
            if self._gateway.over(job):
                self._gateway.loop.abort(job)
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.abort()
