"""A process of the server, and its end of the pipe to the supervisor.

Words go both ways. With `CONNECT` comes one end of a connection between an API process and the
engine process, so that no socket has a name that others could find. The supervisor's end of the
pipe closes when it dies, and then its children end at once.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle

from gossamer.server.logs import set_up_log

CONNECT, STOP, READY = "connect", "stop", "ready"


@dataclass(frozen=True)
class Refused:
    """Said instead of READY: what the process raised when it started."""

    kind: str
    message: str


def set_up(log_format: str) -> None:
    """Signals are the supervisor's: it tells its children, and a terminal would tell all."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    set_up_log(log_format)


def listen(
    pipe: Connection, attach: Callable[[socket.socket], None], stop: Callable[[], None]
) -> None:
    """In a thread of its own, follow the supervisor's words; when it is gone, the process ends."""
    args = (pipe, attach, stop)
    threading.Thread(target=_listen, args=args, name="supervisor", daemon=True).start()


def _listen(
    pipe: Connection, attach: Callable[[socket.socket], None], stop: Callable[[], None]
) -> None:
    try:
        while True:
            word = pipe.recv()
            if word == CONNECT:
                attach(socket.socket(fileno=recv_handle(pipe)))
            elif word == STOP:
                stop()
    except (EOFError, OSError):
        os._exit(1)


def send_socket(pipe: Connection, pid: int, end: socket.socket) -> None:
    """Give a process one end of a connection. OSError if it is gone."""
    pipe.send(CONNECT)
    send_handle(pipe, end.fileno(), pid)
