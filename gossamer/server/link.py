"""Engines as the event loop of an API process sees them: messages, calls, their end."""

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from gossamer.server.errors import APIError, failed
from gossamer.server.events import Numbered
from gossamer.server.info import ServerInfo
from gossamer.server.wire import Call, Hello, Reply, Step, encode, receive_async

Connect = Callable[[], Awaitable[socket.socket]]
Events = Callable[[Numbered], None]
log = logging.getLogger("gossamer.server")
SILENT = "engine_silent"
RETRY = 0.2  # seconds between two tries to connect
PATIENCE = 5.0  # seconds for an answer that takes no step


class Link(Protocol):
    """Where requests go and events come from: one process, or several replicas."""

    @property
    def info(self) -> ServerInfo: ...

    @property
    def up(self) -> bool: ...

    async def start(self) -> None:
        """Until the engines have introduced themselves."""

    async def close(self) -> None: ...

    def send(self, message: Any) -> None:
        """Add, Abort or Responded. APIError 503 while there is no engine."""

    async def call(self, name: str, *arguments: Any, seconds: float = PATIENCE) -> Any:
        """What the engines answer. APIError if they do not, or cannot."""


class EngineLink:
    """A connection to an engine process that is made anew when it is lost.

    connect: a socket to an engine process; raises OSError while there is none. events: called with
    what steps added. lost: called when the process is gone, with all its requests.
    """

    def __init__(self, connect: Connect, events: Events, lost: Callable[[], None]) -> None:
        self._connect, self._events, self._lost = connect, events, lost
        self._writer: asyncio.StreamWriter | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._info: ServerInfo | None = None

    @property
    def info(self) -> ServerInfo:
        assert self._info is not None, "started"
        return self._info

    @property
    def up(self) -> bool:
        return self._writer is not None

    async def start(self) -> None:
        """Until the engines have introduced themselves."""
        self._task = asyncio.create_task(self._run())
        known = asyncio.create_task(self._known.wait())
        await asyncio.wait({known, self._task}, return_when=asyncio.FIRST_COMPLETED)
        known.cancel()
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def send(self, message: Any) -> None:
        """APIError 503 while there is no engine."""
        if self._writer is None:
            raise gone()
        self._writer.write(encode(message))

    async def call(self, name: str, *arguments: Any, seconds: float = PATIENCE) -> Any:
        """What the engine process answers. APIError if it does not, or cannot."""
        number = next(self._numbers)
        future = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(Call(number, name, arguments))
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise APIError(
                503, f"the engine did not answer within {seconds:g} seconds", code=SILENT
            ) from None
        finally:
            del self._calls[number]

    async def _run(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(sock=await self._connect())
            except OSError:
                await asyncio.sleep(RETRY)
                continue
            try:
                await self._read(reader, writer)
            except (EOFError, OSError):
                log.error("the connection to the engine is lost")
            finally:
                self._writer = None
                writer.close()
                self._end_all()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            match await receive_async(reader):
                case Step() as step:
                    self._events(step.numbered)
                case Reply(number, value, failure):
                    future = self._calls.get(number)
                    if future is not None and not future.done():
                        if failure is None:
                            future.set_result(value)
                        else:
                            future.set_exception(failed(failure))
                case Hello(info):
                    self._info, self._writer = info, writer
                    self._known.set()

    def _end_all(self) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_exception(gone())
        self._lost()


def gone() -> APIError:
    return APIError(
        503, "the engine is not running", code="engine_down", headers={"Retry-After": "5"}
    )
