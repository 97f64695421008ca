"""Messages between an API process and the engine process: pickles with their length before them.

Both are parts of one server: the socket is in a folder that only its user can open.
"""

import asyncio
import pickle
import socket
import struct
from typing import Any, NamedTuple

from gossamer.server.events import EngineRequest, Event, Failure, Numbered
from gossamer.server.info import ServerInfo
from gossamer.server.keys import Use

_LENGTH = struct.Struct("<I")


class Add(NamedTuple):
    """Run all of these, or refuse them together. use: of an API key with limits."""

    requests: tuple[EngineRequest, ...]
    use: Use | None = None


class Abort(NamedTuple):
    """End a request, or one output of it; no event follows."""

    number: int
    output: int | None = None


class Call(NamedTuple):
    """To be answered by a Reply of the same number; see EngineHost. arguments: of some calls."""

    number: int
    name: str
    arguments: tuple[Any, ...] = ()


class Responded(NamedTuple):
    """An HTTP response, to be counted."""

    method: str
    route: str
    status: int


class Hello(NamedTuple):
    """The first message of an engine process."""

    info: ServerInfo


class Step(NamedTuple):
    """What a step added to requests. Plain tuples: 0.2 us each to pickle, an Event takes 0.9."""

    events: list[tuple[Any, ...]]

    @classmethod
    def of(cls, events: Numbered) -> "Step":
        return cls([(number, *event) for number, event in events])

    @property
    def numbered(self) -> Numbered:
        return [(number, Event(*fields)) for number, *fields in self.events]


class Reply(NamedTuple):
    """value: what was called for, unless there is a failure."""

    number: int
    value: Any
    failure: Failure | None = None


def encode(message: Any) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def receive(connection: socket.socket) -> Any:
    """The next message; EOFError at the end, OSError for a connection that broke."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


async def receive_async(reader: asyncio.StreamReader) -> Any:
    """As `receive`; asyncio.IncompleteReadError is an EOFError."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def _exactly(connection: socket.socket, count: int) -> bytearray:
    content = bytearray(count)
    view, seen = memoryview(content), 0
    while seen < count:
        got = connection.recv_into(view[seen:])
        if got == 0:
            raise EOFError
        seen += got
    return content
