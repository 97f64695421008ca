"""The engines as routes see them: submission, subscriptions, state."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from gossamer.engine import SamplingParams
from gossamer.kv import KVConfig
from gossamer.server.errors import APIError, failed
from gossamer.server.events import EngineRequest, Event, Failure, Numbered
from gossamer.server.info import EngineInfo, ServerInfo
from gossamer.server.keys import Use
from gossamer.server.link import PATIENCE, SILENT, Events, Link, gone
from gossamer.server.output_text import OutputText, Piece
from gossamer.server.settings import Limits
from gossamer.server.snapshot import HostState
from gossamer.server.tokens import Tokens
from gossamer.server.wire import Abort, Add, Responded

FAILING = 3  # steps in a row that raised, from which on health is bad


class Gateway:
    """Takes requests for engines in other processes, or in other threads of this one.

    link: makes the way to them; called with what takes events, and what is told that all requests
    are lost. To be used in one event loop, between `start` and `close`.
    """

    def __init__(self, link: Callable[[Events, Callable[[], None]], Link], limits: Limits) -> None:
        self.limits, self.draining = limits, False
        self._link = link(self._dispatch, self._lost)
        self._numbers = itertools.count()
        self._subscriptions: dict[int, Subscription] = {}
        self._tokens: Tokens | None = None
        self._adapters: tuple[str, ...] = ()

    async def start(self) -> None:
        """Until the engines are there."""
        await self._link.start()
        self._tokens = Tokens(self.info.tokenizer)
        self._adapters = self.info.adapters

    async def close(self) -> None:
        """The engines notice, and end what is running."""
        await self._link.close()
        if self._tokens is not None:
            self._tokens.close()

    @property
    def info(self) -> ServerInfo:
        return self._link.info

    @property
    def engines(self) -> dict[str, EngineInfo]:
        """By KV spec; the first is the one of requests that name none."""
        return self.info.engines

    @property
    def tokens(self) -> Tokens:
        assert self._tokens is not None, "started"
        return self._tokens

    @property
    def in_flight(self) -> int:
        """Prompts of this process that are not answered."""
        return len(self._subscriptions)

    async def call(self, name: str, *arguments: Any, seconds: float = PATIENCE) -> Any:
        """What the engine process answers. APIError if it does not, or cannot."""
        return await self._link.call(name, *arguments, seconds=seconds)

    async def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters that are loaded now, or were when there was an engine."""
        with suppress(APIError):
            self._adapters = await self.call("adapters")
        return self._adapters

    def had_adapter(self, name: str) -> bool:
        """Whether it was loaded when this was last asked; the engine refuses one that is gone."""
        return name in self._adapters

    async def status(self) -> str:
        """ok, draining, failing, down (no engine process) or silent (one that does not answer)."""
        try:
            return self.status_of(await self.call("state"))
        except APIError as error:
            return "silent" if error.code == SILENT else "down"

    def status_of(self, state: HostState) -> str:
        if self.draining:
            return "draining"
        broken = any(engine.failures >= FAILING for engine in state.engines.values())
        return "failing" if broken else "ok"

    def responded(self, method: str, route: str, status: int) -> None:
        """Count an HTTP response."""
        with suppress(APIError):  # while there is no engine, nobody counts
            self._link.send(Responded(method, route, status))

    def resolve_kv(self, kv: str | None) -> str:
        """The name of the engine with this cache. APIError for one that is not loaded."""
        if kv is None or kv in self.engines:
            return next(iter(self.engines)) if kv is None else kv
        for name, engine in self.engines.items():
            with suppress(ValueError):
                # By its bits, or by the percentage of which they were made.
                if KVConfig.of(kv, getattr(torch, engine.dtype)) in (engine.kv, engine.asked):
                    return name
        loaded = ", ".join(self.engines)
        raise APIError(400, f"kv is {kv!r}; loaded: {loaded}", param="kv", code="kv_not_loaded")

    def submit(
        self,
        kv: str,
        prompts: Sequence[tuple[int, ...]],
        params: SamplingParams,
        *,
        shown: Mapping[int, str] | None = None,
        lora: str | None = None,
        use: Use | None = None,
    ) -> "Subscription":
        """Queue prompts. APIError 503 while draining and without an engine; 429 comes as event.

        shown: special tokens that are shown as text. lora: the name of an adapter. use: of an API
        key with limits, for which they are counted.
        """
        count = len(prompts) * params.n
        most = min(self.engines[kv].max_num_seqs + self.limits.queue, self.limits.sequences)
        if count > most:
            raise APIError(400, f"prompts times n is {count}; must be 1 to {most}", param="n")
        if self.draining:
            raise APIError(503, "the server is about to stop", headers={"Retry-After": "5"})
        if not self._link.up:
            raise gone()
        without_text = replace(params, stop=(), detokenize=False)
        requests = tuple(
            EngineRequest(next(self._numbers), kv, ids, without_text, lora) for ids in prompts
        )
        try:
            subscription = Subscription(self, requests, params, shown)
        except ValueError as error:  # stop strings without a tokenizer
            raise APIError(400, str(error), param="stop") from None
        self._link.send(Add(requests, use))
        self._subscriptions.update({request.number: subscription for request in requests})
        return subscription

    def abort(self, number: int, output: int | None = None) -> None:
        """End a request, or an output of it."""
        with suppress(APIError):
            self._link.send(Abort(number, output))

    def release(self, number: int) -> None:
        """Nothing more is wanted of a request."""
        self._subscriptions.pop(number, None)

    def _dispatch(self, events: Numbered) -> None:
        for number, event in events:
            subscription = self._subscriptions.get(number)
            if subscription is not None:
                subscription.put(number, event)

    def _lost(self) -> None:
        error = gone()
        failure = Failure(f"{error}; it ended while it had this request", 503, error.code, 5)
        self._dispatch([(number, Event.failed(failure)) for number in list(self._subscriptions)])


class Subscription:
    """The outputs of all prompts of one HTTP request, counted through.

    Iterating gives (output number, piece); what has come since the last time is one piece. It
    raises APIError when an output fails or the time is up.
    """

    def __init__(
        self,
        gateway: Gateway,
        requests: Sequence[EngineRequest],
        params: SamplingParams,
        shown: Mapping[int, str] | None,
    ) -> None:
        self._gateway = gateway
        self._n = params.n
        self._first = {request.number: i * params.n for i, request in enumerate(requests)}
        self._open = dict.fromkeys(self._first, params.n)  # outputs that are not finished
        decoder = gateway.tokens.decoder
        self._texts = [
            OutputText(decoder, params, request.prompt_ids, shown)
            for request in requests
            for _ in range(params.n)
        ]
        self._timer = asyncio.get_running_loop().call_later(gateway.limits.timeout, self._expire)
        self._waiting: dict[int, Event] = {}  # by output number
        self._failure: Failure | None = None
        self._news = asyncio.Event()

    def put(self, number: int, event: Event) -> None:
        """Called by the gateway."""
        if event.failure is not None:
            self._failure = event.failure
            self._closed(number)
        else:
            output = self._first[number] + event.output
            before = self._waiting.get(output)
            self._waiting[output] = event if before is None else before.then(event)
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        while self._open or self._failure is not None:
            await self._news.wait()
            self._news.clear()
            waiting, self._waiting = self._waiting, {}
            for output, event in waiting.items():
                piece = self._read(output, event)
                if piece is not None:
                    yield output, piece
            if self._failure is not None:
                raise failed(self._failure)

    def abort(self) -> None:
        """End what is still running; its pages return before the next step."""
        for number in list(self._open):
            self._closed(number)
            self._gateway.abort(number)

    def _read(self, output: int, event: Event) -> Piece | None:
        """What an event says; nothing after the output has ended."""
        text = self._texts[output]
        if text.finished:
            return None
        piece = text.take(event)
        if piece.finish_reason is None:
            return piece
        number = list(self._first)[output // self._n]
        if event.finish_reason is None:  # a stop string, of which the engine knows nothing
            self._gateway.abort(number, output % self._n)
        self._open[number] -= 1
        if not self._open[number]:
            self._closed(number)
        return piece

    def _closed(self, number: int) -> None:
        self._open.pop(number, None)
        self._gateway.release(number)
        if not self._open:
            self._timer.cancel()

    def _expire(self) -> None:
        limit = self._gateway.limits.timeout
        self._failure = Failure(f"the request took longer than {limit:g} seconds", 504, "timeout")
        self._news.set()
