"""Replicas as the event loop of an API process sees them: requests, events, deaths."""

import asyncio
import contextvars
import itertools
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from gossamer.cluster.merging import merged_metrics, merged_state
from gossamer.cluster.replay import DivergedError, Replay
from gossamer.server.events import EngineRequest, Event, Failure
from gossamer.server.info import ServerInfo
from gossamer.server.link import PATIENCE, Events, gone
from gossamer.server.wire import Abort, Add, Responded

log = logging.getLogger("gossamer.server")
TRIES = 3  # replicas that may die of one request
COUNT_SECONDS = 1.0  # between two messages that count HTTP responses


class ReplicaLink:
    """A Link (see gossamer.server.link) to all replicas of a deployment.

    A request whose replica ends is computed again by another one, and goes on where it was; where
    that is not possible, it ends with 503. handle: of EngineReplica. `lost` is never called, as
    replicas do not end together.
    """

    def __init__(self, handle: DeploymentHandle, events: Events, lost: Callable[[], None]) -> None:
        self._handle, self._events = handle, events
        self._generate = handle.options(stream=True).generate
        self._process, self._names = uuid.uuid4().hex, itertools.count()
        self._running: dict[int, _Running] = {}
        self._responded: list[Responded] = []
        self._counting: asyncio.Task[None] | None = None
        self._info: ServerInfo | None = None

    @property
    def info(self) -> ServerInfo:
        assert self._info is not None, "started"
        return self._info

    @property
    def up(self) -> bool:
        """While there is no replica, requests wait for one, up to their timeout."""
        return self._info is not None

    async def start(self) -> None:
        self._info = await self._handle.info.remote()
        self._counting = asyncio.create_task(self._count())

    async def close(self) -> None:
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if self._counting is not None:
            tasks.append(self._counting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, message: Any) -> None:
        match message:
            case Add(requests):
                for request in requests:
                    running = _Running(request, f"{self._process}-{next(self._names)}")
                    self._running[request.number] = running
                    # Calls in the context of one HTTP request have one id, and Ray Serve's routing
                    # takes the second of two that wait with the same id for the first.
                    run = self._run(running)
                    running.task = asyncio.create_task(run, context=contextvars.Context())
            case Abort(number, output):
                self._abort(number, output)
            case Responded():
                self._responded.append(message)

    async def call(self, name: str, seconds: float = PATIENCE) -> Any:
        """state or metrics, of all replicas together."""
        called = self._handle.broadcast(name)
        found = await called.results_async(timeout_s=seconds, return_exceptions=True)
        answers = [each for each in found if not isinstance(each, BaseException)]
        if not answers:
            raise gone()
        return merged_state(answers) if name == "state" else merged_metrics(dict(answers))

    def _abort(self, number: int, output: int | None) -> None:
        running = self._running.get(number)
        if running is None or running.task is None:
            return
        if output is None or running.request.params.n == 1:
            running.task.cancel()
        else:  # its replica is known to Ray alone
            self._handle.broadcast("abort", running.name, output)

    async def _run(self, running: "_Running") -> None:
        number = running.request.number
        try:
            failure = await self._attempts(running)
        except DivergedError:
            failure = _unfinished("another replica does not repeat what it said")
        except BackPressureError as error:
            failure = Failure(str(error), 429, "queue_full", 5)
        except Exception as error:
            failure = Failure(f"{type(error).__name__}: {error}")
            log.error("%s: a request failed", failure.id, exc_info=error)
        finally:
            del self._running[number]
        if failure is not None:
            self._events([(number, Event.failed(failure))])

    async def _attempts(self, running: "_Running") -> Failure | None:
        """Until the request is over; why it cannot be."""
        number = running.request.number
        replay = Replay(running.request.params.n)
        for _ in range(TRIES):
            try:
                async for events in self._generate.remote(running.name, running.request):
                    fresh = replay.fresh(Event(*fields) for fields in events)
                    if fresh:
                        self._events([(number, event) for event in fresh])
                return None
            except RayActorError as error:
                log.error("the replica of request %s ended: %s", running.name, error)
                replay.again()
        return _unfinished(f"{TRIES} replicas ended while they had it")

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            responses, self._responded = self._responded, []
            if responses:
                with suppress(RayActorError, BackPressureError):  # then nobody counts
                    await self._handle.responded.remote(responses)


class _Running:
    """A request on its way. name: the same for all API processes."""

    def __init__(self, request: EngineRequest, name: str) -> None:
        self.request, self.name = request, name
        self.task: asyncio.Task[None] | None = None


def _unfinished(reason: str) -> Failure:
    message = f"the replica that had this request ended, and {reason}; send it again"
    return Failure(message, 503, "engine_down", 1)
