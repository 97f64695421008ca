"""The thread that steps the engines: requests in, events out.

One thread for all engines, in turn: an engine is not for several threads, and two that capture
CUDA graphs or share a CPU's cores at the same time would only failed each other.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import torch

from gossamer.engine import Delta, Engine
from gossamer.server.events import EngineRequest, Event, Events, Failure
from gossamer.server.metrics import Metrics
from gossamer.server.snapshot import Rate, Snapshot

T = TypeVar("T")
Publish = Callable[[Events], None]
log = logging.getLogger("gossamer.server")


class EngineLoop:
    """All methods may be called in any thread; `publish` is called in the loop's own.

    A step that raises ends its own requests with a failure, and the loop goes on.
    """

    def __init__(self, engines: Mapping[str, Engine], publish: Publish, metrics: Metrics) -> None:
        self._engines, self._publish, self._metrics = engines, publish, metrics
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._requests: dict[str, EngineRequest] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="gossamer engine", daemon=True)
        self.rates = {name: Rate() for name in engines}
        self.snapshots = {name: Snapshot.of(engine) for name, engine in engines.items()}
        self.failures = dict.fromkeys(engines, 0)  # steps that raised since one did not

    def start(self) -> None:
        self._thread.start()

    def add(self, request: EngineRequest) -> None:
        """Run it; its events follow."""
        self._inbox.put(partial(self._add, request))

    def abort(self, request: EngineRequest) -> None:
        """End it now, unless it is over; no event follows."""
        self._inbox.put(partial(self._abort, request))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Between two steps, in the thread of the engines."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._inbox.put(run)
        return future

    def close(self) -> None:
        """End what is running, and the thread. The engines stay open."""
        if self._thread.is_alive():
            self._inbox.put(self._close)
            self._thread.join()

    # ---- in the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        for engine in self._engines.values():
            if engine.built.device.type == "cuda":  # the current device is each thread's own
                torch.cuda.set_device(engine.built.device)
        while not self._closing:
            self._run_inbox()
            for name, engine in self._engines.items():
                if engine.busy:
                    self._step(name, engine)

    def _run_inbox(self) -> None:
        """Call everything in the inbox; waits where there is nothing else to do."""
        waits = not any(engine.busy for engine in self._engines.values())
        while waits or not self._inbox.empty():
            self._inbox.get()()
            waits = False
        for name, engine in self._engines.items():
            self.snapshots[name] = Snapshot.of(engine)

    def _add(self, request: EngineRequest) -> None:
        try:
            engine = self._engines[request.kv]
            engine.add_request(request.prompt_ids, request.params, request_id=request.id)
        except (ValueError, TypeError) as error:
            self._metrics.finished(request, "refused")
            failure = Failure(str(error), refused=True)
            self._publish([(request, Event(0, finish_reason="error", failure=failure))])
            return
        self._requests[request.id] = request

    def _abort(self, request: EngineRequest) -> None:
        if self._requests.pop(request.id, None) is not None:
            self._engines[request.kv].abort(request.id)
            self._metrics.finished(request, "abort")

    def _close(self) -> None:
        for request in list(self._requests.values()):
            self._abort(request)
        self._closing = True

    def _step(self, name: str, engine: Engine) -> None:
        try:
            deltas = engine.step()
        except Exception as error:
            self.failures[name] += 1
            self._publish(self._fail(name, engine, error))
        else:
            self.failures[name] = 0
            events = [found for delta in deltas for found in self._events_of(delta)]
            self.rates[name].add(sum(event.tokens for _, event in events))
            self.snapshots[name] = Snapshot.of(engine)
            if events:
                self._publish(events)

    def _events_of(self, delta: Delta) -> Events:
        """Nothing for a request that was given up in this very step."""
        request = self._requests.get(delta.request_id)
        if request is None:
            return []
        output, failure = delta.request.outputs[delta.index], None
        if delta.finish_reason == "error":
            failure = Failure(output.error or "")
            log.error("%s: request %s failed: %s", failure.id, request.id, output.error)
            # Its other outputs are of no use to anyone.
            self._engines[request.kv].abort(request.id)
            del self._requests[request.id]
            self._metrics.finished(request, "error")
        request.finished += delta.finish_reason is not None
        event = Event.of(delta, last=request.finished == request.params.n, failure=failure)
        self._metrics.observe(request, event, time.perf_counter())
        if failure is None and event.usage is not None:
            del self._requests[request.id]
            self._metrics.finished(request, event.finish_reason or "stop", event.usage)
        return [(request, event)]

    def _fail(self, name: str, engine: Engine, error: Exception) -> Events:
        """What a step that raised means for requests: those it ended, or all if it ended none."""
        failure = Failure(f"{type(error).__name__}: {error}")
        log.error("%s: a step of %s failed", failure.id, name, exc_info=error)
        mine = [request for request in self._requests.values() if request.kv == name]
        failed = [request for request in mine if _has_error(engine, request)] or mine
        for request in failed:
            engine.abort(request.id)
            del self._requests[request.id]
            self._metrics.finished(request, "error")
        return [(request, Event(0, finish_reason="error", failure=failure)) for request in failed]


def _has_error(engine: Engine, request: EngineRequest) -> bool:
    """Whether the step ended at least one of its outputs."""
    known = engine.requests.get(request.id)
    return known is None or any(o.finish_reason == "error" for o in known.output.outputs)
