"""The engines as the event loop sees them: admission, subscriptions, draining."""

import asyncio
import math
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from gossamer.engine import LLM, Engine, SamplingParams
from gossamer.kv import KVConfig
from gossamer.server.engine_loop import EngineLoop
from gossamer.server.errors import APIError, failed
from gossamer.server.events import EngineRequest, Event, Events
from gossamer.server.metrics import Metrics
from gossamer.server.settings import Limits
from gossamer.server.tokens import Tokens

FAILING = 3  # steps in a row that raised, from which on health is bad
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
        self.loop = EngineLoop(self.engines, self._publish, metrics)
        self._subscriptions: dict[EngineRequest, Subscription] = {}
        self._active = dict.fromkeys(engines, 0)  # sequences that run or wait
        self._duration = 1.0
        self._event_loop: asyncio.AbstractEventLoop | None = None
        metrics.watch(lambda: self.loop.snapshots)

    async def start(self) -> None:
        self._event_loop = asyncio.get_running_loop()
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

    def resolve_kv(self, kv: str | None) -> str:
        """The name of the engine with this cache. APIError for one that is not loaded."""
        if kv is None or kv in self.engines:
            return next(iter(self.engines)) if kv is None else kv
        for name, engine in self.engines.items():
            with suppress(ValueError):
                dtype = engine.built.dtype
                # By its bits, or by the percentage of which they were made.
                if KVConfig.of(kv, dtype) in (engine.kv, KVConfig.of(engine.config.kv, dtype)):
                    return name
        loaded = ", ".join(self.engines)
        raise APIError(400, f"kv is {kv!r}; loaded: {loaded}", param="kv", code="kv_not_loaded")

    def submit(
        self, kv: str, prompts: Sequence[tuple[int, ...]], params: SamplingParams
    ) -> "Subscription":
        """Queue prompts. APIError: 429 when the queue is full, 503 while draining."""
        count = len(prompts) * params.n
        room = self.engines[kv].config.max_num_seqs + self.limits.queue
        most = min(room, self.limits.sequences)
        if count > most:
            raise APIError(400, f"prompts times n is {count}; must be 1 to {most}", param="n")
        if self.draining:
            raise APIError(503, "the server is about to stop", headers={"Retry-After": "5"})
        if self._active[kv] + count > room:
            raise APIError(
                429,
                f"{self._active[kv]} sequences run or wait; must be at most {room} with the "
                f"{count} of this request",
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(kv))},
            )
        name = uuid.uuid4().hex
        requests = [EngineRequest(f"{name}-{i}", kv, ids, params) for i, ids in enumerate(prompts)]
        subscription = Subscription(self, requests, params.n)
        self._active[kv] += count
        for request in requests:
            self._subscriptions[request] = subscription
            self.loop.add(request)
        return subscription

    def _retry_after(self, kv: str) -> int:
        """When about half of the queue will be gone."""
        batch = self.engines[kv].config.max_num_seqs
        seconds = self._duration * max(1.0, self._active[kv] / batch) / 2
        return max(1, min(LONGEST_RETRY, math.ceil(seconds)))

    def release(self, request: EngineRequest, *, seconds: float | None = None) -> bool:
        """Give back a request's places in the queue; whether it had any."""
        if self._subscriptions.pop(request, None) is None:
            return False
        self._active[request.kv] -= request.params.n
        if seconds is not None:
            self._duration += SMOOTHING * (seconds - self._duration)
        return True

    def _publish(self, events: Events) -> None:
        assert self._event_loop is not None, "started"
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._event_loop.call_soon_threadsafe(self._dispatch, events)

    def _dispatch(self, events: Events) -> None:
        for request, event in events:
            subscription = self._subscriptions.get(request)
            if subscription is not None:
                subscription.put(request, event)


class Subscription:
    """The events of all prompts of one HTTP request.

    Iterating gives (output number, event), outputs of all prompts counted through. It raises
    APIError when an output fails or the time is up.
    """

    def __init__(self, gateway: Gateway, requests: list[EngineRequest], n: int) -> None:
        self._gateway = gateway
        self._first = {request: i * n for i, request in enumerate(requests)}
        self._open = set(requests)
        self._arrival = asyncio.get_running_loop().time()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def put(self, request: EngineRequest, event: Event) -> None:
        """Called by the gateway, in the event loop."""
        if event.usage is not None or event.failure is not None:
            self._open.discard(request)
            seconds = asyncio.get_running_loop().time() - self._arrival
            self._gateway.release(request, seconds=seconds)
        self._events.put_nowait((self._first[request] + event.index, event))

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event]]:
        limit = self._gateway.limits.timeout
        while self._open or not self._events.empty():
            try:
                async with asyncio.timeout_at(self._arrival + limit):
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
        for request in self._open:
            if self._gateway.release(request):
                self._gateway.loop.abort(request)
        self._open.clear()
