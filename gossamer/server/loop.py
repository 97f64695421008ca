"""The thread that steps the engines: jobs in, events out.

One thread for all engines, in turn: an engine is not for several threads, and two that capture
CUDA graphs or share a CPU's cores at the same time would only hurt each other.
"""

import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import torch

from gossamer.engine import Delta, Engine
from gossamer.server.events import Event, Failure, Job
from gossamer.server.metrics import Metrics
from gossamer.server.snapshot import Rate, Snapshot

T = TypeVar("T")
Deliver = Callable[[list[tuple[Job, Event]]], None]
log = logging.getLogger("gossamer.server")


class EngineLoop:
    """All methods may be called in any thread; `deliver` is called in the loop's own.

    A step that raises ends its own requests with a failure, and the loop goes on.
    """

    def __init__(self, engines: Mapping[str, Engine], deliver: Deliver, metrics: Metrics) -> None:
        self._engines, self._deliver, self._metrics = engines, deliver, metrics
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="gossamer engine", daemon=True)
        self.rates = {name: Rate() for name in engines}
        self.snapshots = {name: Snapshot.of(engine) for name, engine in engines.items()}
        self.failures = dict.fromkeys(engines, 0)  # steps that raised since one did not

    def start(self) -> None:
        self._thread.start()

    def add(self, job: Job) -> None:
        """Run it; its events follow."""
        self._inbox.put(partial(self._add, job))

    def abort(self, job: Job) -> None:
        """End it now, unless it is over; no event follows."""
        self._inbox.put(partial(self._abort, job))

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
            self._take_in()
            for name, engine in self._engines.items():
                if engine.busy:
                    self._step(name, engine)

    def _take_in(self) -> None:
        """Everything that was asked for; waits where there is nothing else to do."""
        waits = not any(engine.busy for engine in self._engines.values())
        while waits or not self._inbox.empty():
            self._inbox.get()()
            waits = False
        for name, engine in self._engines.items():
            self.snapshots[name] = Snapshot.of(engine)

    def _add(self, job: Job) -> None:
        try:
            self._engines[job.lane].add_request(job.ids, job.params, request_id=job.id)
        except (ValueError, TypeError) as error:
            self._metrics.finished(job, "refused")
            failure = Failure(_new_id(), str(error), refused=True)
            self._deliver([(job, Event(0, finish_reason="error", failure=failure))])
            return
        self._jobs[job.id] = job

    def _abort(self, job: Job) -> None:
        if self._jobs.pop(job.id, None) is not None:
            self._engines[job.lane].abort(job.id)
            self._metrics.finished(job, "abort")

    def _close(self) -> None:
        for job in list(self._jobs.values()):
            self._abort(job)
        self._closing = True

    def _step(self, name: str, engine: Engine) -> None:
        try:
            deltas = engine.step()
        except Exception as error:
            self.failures[name] += 1
            self._deliver(self._failed(name, engine, error))
        else:
            self.failures[name] = 0
            events = [found for delta in deltas for found in self._event(delta)]
            self.rates[name].add(sum(event.tokens for _, event in events))
            self.snapshots[name] = Snapshot.of(engine)
            if events:
                self._deliver(events)

    def _event(self, delta: Delta) -> list[tuple[Job, Event]]:
        """Nothing for a request that was given up in this very step."""
        job = self._jobs.get(delta.request_id)
        if job is None:
            return []
        output, failure = delta.request.outputs[delta.index], None
        if delta.finish_reason == "error":
            failure = Failure(_new_id(), output.error or "")
            log.error("%s: request %s failed: %s", failure.id, job.id, output.error)
            # Its other outputs are of no use to anyone.
            self._engines[job.lane].abort(job.id)
            del self._jobs[job.id]
            self._metrics.finished(job, "error")
        job.ended += delta.finish_reason is not None
        event = Event.of(delta, last=job.ended == job.params.n, failure=failure)
        self._metrics.took(job, event, time.perf_counter())
        if failure is None and event.usage is not None:
            del self._jobs[job.id]
            self._metrics.finished(job, event.finish_reason or "stop", event.usage)
        return [(job, event)]

    def _failed(self, name: str, engine: Engine, error: Exception) -> list[tuple[Job, Event]]:
        """What a step that raised means for jobs: those it ended, or all if it ended none."""
        failure = Failure(_new_id(), f"{type(error).__name__}: {error}")
        log.error("%s: a step of %s failed", failure.id, name, exc_info=error)
        mine = [job for job in self._jobs.values() if job.lane == name]
        hurt = [job for job in mine if _has_error(engine, job)] or mine
        for job in hurt:
            engine.abort(job.id)
            del self._jobs[job.id]
            self._metrics.finished(job, "error")
        return [(job, Event(0, finish_reason="error", failure=failure)) for job in hurt]


def _has_error(engine: Engine, job: Job) -> bool:
    """Whether the step ended at least one of its outputs."""
    request = engine.requests.get(job.id)
    return request is None or any(o.finish_reason == "error" for o in request.output.outputs)


def _new_id() -> str:
    return f"err-{uuid.uuid4().hex[:12]}"
