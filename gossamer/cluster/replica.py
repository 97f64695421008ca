"""One replica: engines of its own and their thread, in an actor of Ray Serve."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

from ray import serve

from gossamer.server.engine_process import EngineStart, load_engines
from gossamer.server.events import EngineRequest, Event, Failure
from gossamer.server.gateway import FAILING
from gossamer.server.host import EngineHost
from gossamer.server.info import ServerInfo
from gossamer.server.logs import set_up_log
from gossamer.server.snapshot import HostState
from gossamer.server.wire import Responded, Step

log = logging.getLogger("gossamer.server")


class EngineReplica:
    """Answers a prompt per call of `generate`."""

    def __init__(self, start: EngineStart) -> None:
        set_up_log(start.log_format)
        self._start, self._stack = start, ExitStack()
        engines = load_engines(start, self._stack)
        self._host = EngineHost(engines, start.queue, start.profiles)
        self._host.start()
        self._streams: dict[str, _Stream] = {}
        self._name = serve.get_replica_context().replica_id.unique_id

    async def generate(self, name: str, request: EngineRequest) -> AsyncIterator[list[Any]]:
        """What steps add to the request, as tuples of Event; it ends when nobody listens."""
        if request.kv not in self._host.info.engines:  # of an API process of another version
            message = f"kv is {request.kv!r}, which this replica has not; send it again"
            yield [tuple(Event.failed(Failure(message, 503, "updating", 5)))]
            return
        stream = self._streams[name] = _Stream(request)
        try:
            failure = self._host.loop.add([request], stream)
            if failure is not None:
                yield [tuple(Event.failed(failure))]
                return
            while stream.open:
                yield await stream.next()
        finally:
            self._host.loop.abort_all(stream)
            del self._streams[name]

    async def abort(self, name: str, output: int) -> None:
        """End one output of a request, if it runs here."""
        stream = self._streams.get(name)
        if stream is not None:
            self._host.loop.abort(stream, stream.request.number, output)
            stream.ended(output)

    def introduce(self, start: EngineStart) -> ServerInfo | None:
        """What is known of the engines, to who expects these; None to who expects others."""
        return self._host.info if start == self._start else None

    def state(self) -> HostState:
        return self._host.state()

    def metrics(self) -> tuple[str, bytes]:
        """The replica's name, and its numbers for Prometheus."""
        return self._name, self._host.metrics.text()

    def responded(self, responses: list[Responded]) -> None:
        """Count HTTP responses, which API processes have sent."""
        for response in responses:
            self._host.metrics.responded(*response)

    async def check_health(self) -> None:
        """Takes too long when the engines do not step; ends the process when all steps fail.

        Ray Serve would ask three times before it replaced a replica whose check raises.
        """
        for name, failures in self._host.loop.failures.items():
            if failures >= FAILING:
                log.error("%d steps of %s in a row failed; this replica ends", failures, name)
                os._exit(1)
        between_steps: Callable[[], None] = lambda: None  # noqa: E731
        await asyncio.wrap_future(self._host.loop.call(between_steps))

    def __del__(self) -> None:
        if hasattr(self, "_host"):
            self._host.close()
        self._stack.close()


class _Stream:
    """Owns a request in the engines' loop, and hands its events to the replica's."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self._open = set(range(request.params.n))
        self._loop = asyncio.get_running_loop()
        self._events: list[Any] = []
        self._news = asyncio.Event()

    @property
    def open(self) -> bool:
        return bool(self._open) or bool(self._events)

    def send(self, step: Step) -> None:
        """In the thread that steps."""
        self._loop.call_soon_threadsafe(self._add, step)

    def ended(self, output: int) -> None:
        self._open.discard(output)
        self._news.set()

    async def next(self) -> list[Any]:
        """All that came since the last call, at least one event unless all outputs were ended."""
        await self._news.wait()
        self._news.clear()
        events, self._events = self._events, []
        return events

    def _add(self, step: Step) -> None:
        for _, event in step.numbered:
            self._events.append(tuple(event))
            if event.failure is not None:
                self._open.clear()
            elif event.finish_reason is not None:
                self._open.discard(event.output)
        self._news.set()
