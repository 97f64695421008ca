"""Replicas as the event loop of an API process sees them: requests, events, deaths."""

import asyncio
import contextvars
import itertools
import logging
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from gossamer.cluster.merging import merged_metrics, merged_state
from gossamer.cluster.replay import DivergedError, Replay
from gossamer.server.engine_process import EngineStart
from gossamer.server.errors import APIError
from gossamer.server.events import EngineRequest, Event, Failure
from gossamer.server.info import ServerInfo
from gossamer.server.link import PATIENCE, Events, gone
from gossamer.server.wire import Abort, Add, Responded

log = logging.getLogger("gossamer.server")
TRIES = 3  # replicas that may die of one request
COUNT_SECONDS = 1.0  # between two messages that count HTTP responses
START_SECONDS = 0.5  # between two questions whether the replicas of this version are there
UNREACHABLE = (RayError, RayServeException, TimeoutError)


class ReplicaLink:
    """A Link (see gossamer.server.link) to all replicas of a deployment.

    A request whose replica ends is computed again by another one, and goes on where it was; where
    that is not possible, it ends with 503. handle: of EngineReplica. start: what its replicas have
    loaded, when they are those of this version. `lost` is never called, as replicas do not end
    together.
    """

    def __init__(
        self,
        handle: DeploymentHandle,
        start: EngineStart,
        events: Events,
        lost: Callable[[], None],
    ) -> None:
        self._handle, self._start, self._events = handle, start, events
        self._generate = handle.options(stream=True).generate
        self._process, self._names = uuid.uuid4().hex, itertools.count()
        self._running: dict[int, _Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._responded: list[Responded] = []
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
        """Until a replica of this version has introduced itself."""
        while (info := await self._handle.introduce.remote(self._start)) is None:
            await asyncio.sleep(START_SECONDS)
        self._info = info
        self._task(self._count())

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, message: Any) -> None:
        match message:
            case Add(_, use) if use is not None:  # a file of keys that was changed meanwhile
                raise APIError(
                    503,
                    f"the API key {use.key!r} has limits, which are not counted over replicas",
                    code="limits_not_counted",
                )
            case Add(requests):
                for request in requests:
                    running = self._running[request.number] = _Running(request)
                    running.task = self._task(self._run(running))
            case Abort(number, output):
                self._abort(number, output)
            case Responded():
                self._responded.append(message)

    async def call(self, name: str, *arguments: Any, seconds: float = PATIENCE) -> Any:
        """state or metrics, of all replicas together, or adapters."""
        if name == "adapters":
            return self.info.adapters  # of options, so all replicas have the same
        called = self._handle.broadcast(name)
        try:
            found = await called.results_async(timeout_s=seconds, return_exceptions=True)
        except UNREACHABLE as error:
            raise gone() from error
        answers = [each for each in found if not isinstance(each, BaseException)]
        if name == "metrics" and answers:
            return merged_metrics(dict(answers))
        states = [state for state in answers if state.engines.keys() == self.info.engines.keys()]
        if not states:
            raise gone()
        return merged_state(states)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Calls in the context of one HTTP request have one id, and Ray Serve's routing takes the
        # second of two that wait with the same id for the first.
        task = asyncio.create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _abort(self, number: int, output: int | None) -> None:
        running = self._running.get(number)
        if running is None or running.task is None:
            return
        if output is not None:
            running.replay.abort(output)
        if output is None or running.replay.over:
            running.task.cancel()
        else:
            self._task(self._tell(running.name, output))

    async def _tell(self, name: str, output: int) -> None:
        """All replicas, as Ray alone knows which one has the request, to end an output of it."""
        called = self._handle.broadcast("abort", name, output)
        try:
            await called.results_async(timeout_s=PATIENCE, return_exceptions=True)
        except UNREACHABLE as error:
            log.warning("an output of request %s may go on: %s", name, error)

    async def _run(self, running: "_Running") -> None:
        number = running.request.number
        try:
            failure = await self._attempts(running)
        except DivergedError:
            failure = _unfinished("another replica does not repeat what it said")
        except BackPressureError as error:
            failure = Failure(str(error), 429, "queue_full", 5)
        except RayServeException as error:
            failure = Failure(str(error), 503, "engine_down", 5)
        except Exception as error:
            failure = Failure(f"{type(error).__name__}: {error}")
            log.error("%s: a request failed", failure.id, exc_info=error)
        finally:
            del self._running[number]
        if failure is not None:
            self._events([(number, Event.failed(failure))])

    async def _attempts(self, running: "_Running") -> Failure | None:
        """Until the request is over; why it cannot be."""
        for _ in range(TRIES):
            running.name = f"{self._process}-{next(self._names)}"
            response = self._generate.remote(running.name, running.request)
            try:
                await self._listen(running, response)
                return None if running.replay.over else _unfinished("did not finish it")
            except RayActorError as error:
                log.error("the replica of request %s ended: %s", running.name, error)
                running.replay.again()
            finally:
                response.cancel()  # or it would be computed to its end, for nobody
        return _unfinished(f"{TRIES} replicas ended while they had it")

    async def _listen(self, running: "_Running", response: Any) -> None:
        aborted = set(running.replay.aborted)  # of which this replica knows nothing
        async for events in response:
            while aborted:
                self._task(self._tell(running.name, aborted.pop()))
            fresh = running.replay.fresh(Event(*fields) for fields in events)
            if fresh:
                self._events([(running.request.number, event) for event in fresh])

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            responses, self._responded = self._responded, []
            if responses:
                try:
                    await self._handle.responded.remote(responses)
                except Exception as error:
                    log.warning("%d HTTP responses are not counted: %s", len(responses), error)


@dataclass(eq=False)
class _Running:
    """A request on its way. name: of this attempt, for all API processes."""

    request: EngineRequest
    name: str = ""
    task: asyncio.Task[None] | None = None
    replay: Replay = field(init=False)

    def __post_init__(self) -> None:
        self.replay = Replay(self.request.params.n)


def _unfinished(reason: str) -> Failure:
    message = f"the replica that had this request ended, and {reason}; send it again"
    return Failure(message, 503, "engine_down", 1)
