"""The thread that steps the engines: requests in, events out.

One thread for all engines, in turn: an engine is not for several threads, and two that capture
CUDA graphs or share a CPU's cores at the same time would only hinder each other.
"""

import itertools
import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from gossamer.engine import Delta, Engine
from gossamer.engine.adapters import UnknownAdapterError
from gossamer.server.admission import Admission
from gossamer.server.events import EngineRequest, Event, Failure, Numbered
from gossamer.server.keys import Use
from gossamer.server.metrics import Metrics, StepTimes
from gossamer.server.rates import Rates, Ticket
from gossamer.server.snapshot import Rate, Snapshot
from gossamer.server.wire import Step

T = TypeVar("T")
log = logging.getLogger("gossamer.server")
SNAPSHOT_SECONDS = 0.05  # between two while an engine is busy: one takes as long as a few tokens


class Owner(Protocol):
    """Who sent requests, and gets their events."""

    def send(self, message: Any) -> None: ...


@dataclass(eq=False)
class Running:
    """A request in an engine; id: its name there. Counts and times are the thread's own."""

    request: EngineRequest
    owner: Owner
    id: str
    arrival: float = field(default_factory=time.perf_counter)
    finished: int = 0  # of its n outputs
    tokens: int = 0  # of its outputs
    ticket: Ticket | None = None  # of tokens that it may take, where these are limited
    latest: dict[int, float] = field(default_factory=dict)  # when an output had its last token

    @property
    def kv(self) -> str:
        return self.request.kv


class EngineLoop:
    """All methods may be called in any thread; owners' `send` is called in the loop's own.

    A step that raises ends its own requests with a failure, and the loop goes on.
    """

    def __init__(self, engines: Mapping[str, Engine], queue_limit: int, metrics: Metrics) -> None:
        self._engines, self._metrics = engines, metrics
        batches = {name: engine.config.max_num_seqs for name, engine in engines.items()}
        self.admission, self._key_rates = Admission(batches, queue_limit), Rates()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: dict[str, Running] = {}
        self._numbered: dict[tuple[Owner, int], Running] = {}
        self._names = itertools.count()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="gossamer engine", daemon=True)
        self.rates = {name: Rate() for name in engines}
        self.snapshots = {name: Snapshot.of(engine) for name, engine in engines.items()}
        self.failures = dict.fromkeys(engines, 0)  # steps that raised since one did not
        self._snapshot_due = 0.0

    def start(self) -> None:
        for engine in self._engines.values():
            engine.grammars.prepare()  # half a second for a large vocabulary, not in a step
        self._thread.start()

    def add(
        self, requests: Sequence[EngineRequest], owner: Owner, use: Use | None = None
    ) -> Failure | None:
        """Run them, all for one engine; their events follow. Or why none of them can wait."""
        kv, count = requests[0].kv, sum(r.params.n for r in requests)
        failure, ticket = self.admission.enter(kv, count), None
        if failure is None and use is not None:
            counted = self._key_rates.enter(use, sum(r.most_tokens for r in requests))
            if isinstance(counted, Failure):
                self.admission.leave(kv, count)
                failure = counted
            else:
                ticket = counted
        if failure is None:
            for request in requests:
                name = f"request-{next(self._names)}"
                self._inbox.put(partial(self._add, Running(request, owner, name, ticket=ticket)))
        return failure

    def abort(self, owner: Owner, number: int, output: int | None = None) -> None:
        """End a request now, or one of its outputs, unless it is over; no event follows."""
        self._inbox.put(partial(self._abort, owner, number, output))

    def abort_all(self, owner: Owner) -> None:
        """End all that it sent."""
        self._inbox.put(partial(self._abort_all, owner))

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
            self._take_snapshots()

    def _run_inbox(self) -> None:
        """Call everything in the inbox; waits where there is nothing else to do."""
        waits = not any(engine.busy for engine in self._engines.values())
        while waits or not self._inbox.empty():
            self._inbox.get()()
            waits = False

    def _take_snapshots(self) -> None:
        now = time.monotonic()
        for name, engine in self._engines.items():
            if not engine.busy or now >= self._snapshot_due:
                self.snapshots[name] = Snapshot.of(engine)
        if now >= self._snapshot_due:
            self._snapshot_due = now + SNAPSHOT_SECONDS

    def _add(self, running: Running) -> None:
        """To its engine; a grammar that is new is compiled in another thread before."""
        request = running.request
        self._running[running.id] = self._numbered[running.owner, request.number] = running
        wanted, grammars = request.params.structured_outputs, self._engines[running.kv].grammars

        def start(done: Future[None]) -> None:
            if running.id not in self._running:  # it was aborted
                return
            error = done.exception()
            if error is None:
                self._start(running)
            else:
                self._refuse(running, error)

        if wanted is None or grammars.knows(wanted):
            self._start(running)
        else:
            compiled = grammars.compile(wanted)
            compiled.add_done_callback(lambda done: self._inbox.put(partial(start, done)))

    def _start(self, running: Running) -> None:
        request = running.request
        try:
            self._engines[request.kv].add_request(
                request.prompt_ids, request.params, request_id=running.id, lora=request.lora
            )
        except (ValueError, TypeError) as error:
            self._refuse(running, error)

    def _refuse(self, running: Running, error: BaseException) -> None:
        self._over(running, "refused")
        if isinstance(error, UnknownAdapterError):  # it was there when the API looked
            failure = Failure(f"model: {error}", 404, "model_not_found")
        elif isinstance(error, ValueError | TypeError | ImportError):
            failure = Failure(str(error), 400)
        else:
            failure = Failure(f"{type(error).__name__}: {error}")
            log.error("%s: request %s cannot start", failure.id, running.id, exc_info=error)
        running.owner.send(Step.of([(running.request.number, Event.failed(failure))]))

    def _over(self, running: Running, outcome: str) -> None:
        request = running.request
        del self._running[running.id], self._numbered[running.owner, request.number]
        self.admission.leave(request.kv, request.params.n)
        if running.ticket is not None:
            unused = request.most_tokens - len(request.prompt_ids) - running.tokens
            self._key_rates.give_back(running.ticket, unused)
        self._metrics.ended(request.kv, outcome)

    def _finish(self, running: Running, last: Delta, outcome: str) -> None:
        seconds = time.perf_counter() - running.arrival
        self._over(running, outcome)
        self.admission.took(seconds)
        self._metrics.finished(running.kv, seconds, last.request.cached_tokens)

    def _abort(self, owner: Owner, number: int, output: int | None) -> None:
        running = self._numbered.get((owner, number))
        if running is None:
            return
        ended = self._engines[running.kv].abort(running.id, output)
        running.finished += len(ended)
        if output is None:
            self._over(running, "abort")
        elif ended and running.finished == running.request.params.n:
            self._finish(running, ended[-1], "stop")  # by a stop string, which the API found

    def _abort_all(self, owner: Owner) -> None:
        for who, number in list(self._numbered):
            if who is owner:
                self._abort(owner, number, None)

    def _close(self) -> None:
        for owner, number in list(self._numbered):
            self._abort(owner, number, None)
        self._closing = True

    def _step(self, name: str, engine: Engine) -> None:
        try:
            deltas = engine.step()
        except Exception as error:
            self.failures[name] += 1
            self._fail(name, engine, error)
            return
        self.failures[name] = 0
        steps: defaultdict[Owner, Numbered] = defaultdict(list)
        times, tokens = StepTimes(time.perf_counter()), 0
        for delta in deltas:
            running = self._running.get(delta.request_id)
            if running is not None:  # else given up in this very step
                tokens += len(delta.token_ids)
                event = self._event(running, delta, times)
                steps[running.owner].append((running.request.number, event))
        self.rates[name].add(tokens)
        self._metrics.step(name, times)
        for owner, events in steps.items():
            owner.send(Step.of(events))

    def _event(self, running: Running, delta: Delta, times: StepTimes) -> Event:
        running.tokens += len(delta.token_ids)
        if delta.token_ids:
            if not running.latest:
                times.firsts.append(times.now - running.arrival)
            elif delta.index in running.latest:
                times.befores[running.latest[delta.index]] += 1
            running.latest[delta.index] = times.now
        if delta.finish_reason is None:
            return Event.of(delta)
        running.finished += 1
        if delta.finish_reason == "error":
            failure = Failure(delta.output.error or "", 400 if delta.output.refused else 500)
            if not delta.output.refused:
                log.error("%s: request %s failed: %s", failure.id, running.id, failure.message)
            # Its other outputs are of no use to anyone.
            self._engines[running.kv].abort(running.id)
            self._over(running, "error")
            return Event.of(delta, failure)
        if running.finished == running.request.params.n:
            self._finish(running, delta, delta.finish_reason)
        return Event.of(delta)

    def _fail(self, name: str, engine: Engine, error: Exception) -> None:
        """What a step that raised means for requests: those it ended, or all if it ended none."""
        failure = Failure(f"{type(error).__name__}: {error}")
        log.error("%s: a step of %s failed", failure.id, name, exc_info=error)
        mine = [running for running in self._running.values() if running.kv == name]
        for running in [each for each in mine if _has_error(engine, each)] or mine:
            engine.abort(running.id)
            self._over(running, "error")
            running.owner.send(Step.of([(running.request.number, Event.failed(failure))]))


def _has_error(engine: Engine, running: Running) -> bool:
    """Whether the step ended at least one of its outputs."""
    known = engine.requests.get(running.id)
    return known is None or any(o.finish_reason == "error" for o in known.output.outputs)
