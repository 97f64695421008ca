"""Engines with all that belongs to their process, for any number of API processes."""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gossamer.engine import LLM, WorkerDiedError
from gossamer.engine.adapters import UnknownAdapterError
from gossamer.models import read_adapter
from gossamer.server.engine_loop import EngineLoop
from gossamer.server.events import Event, Failure
from gossamer.server.info import EngineInfo, ServerInfo
from gossamer.server.metrics import Metrics
from gossamer.server.profiler import Profiler
from gossamer.server.snapshot import EngineState, HostState
from gossamer.server.wire import Abort, Add, Call, Hello, Reply, Responded, Step, encode, receive

log = logging.getLogger("gossamer.server")
# Of what a call raises; the first that fits.
STATUS: dict[type[BaseException], int] = {
    UnknownAdapterError: 404,
    WorkerDiedError: 500,
    ValueError: 400,
    FileNotFoundError: 400,
    RuntimeError: 409,
}
MOST_UNREAD = 64 << 20  # bytes that may wait for an API process that does not read


class EngineHost:
    """Runs requests that come over connections, and answers what API processes call for.

    engines: by the KV spec they were asked for. queue: sequences that may wait next to those that
    run. profiles: a folder for traces; None switches the profiler off. Between `start` and `close`.
    """

    def __init__(
        self, engines: Mapping[str, LLM], queue: int, profiles: Path | None = None
    ) -> None:
        self.metrics = Metrics()
        self.loop = EngineLoop({n: llm.engine for n, llm in engines.items()}, queue, self.metrics)
        self.metrics.watch(lambda: self.loop.snapshots)
        self._engines = [llm.engine for llm in engines.values()]
        tokenizer = next(iter(engines.values())).tokenizer
        self.info = ServerInfo(
            {name: EngineInfo.of(llm) for name, llm in engines.items()},
            tokenizer,
            time.time(),
            profiler=profiles is not None,
            adapters=self.adapters(),
        )
        # Answered at once, in the thread that reads; in one of their own; and between two steps.
        self._at_once: dict[str, Callable[[], Any]] = {
            "state": self.state,
            "metrics": self.metrics.text,
            "adapters": self.adapters,
        }
        self._files = ThreadPoolExecutor(1, "gossamer adapters")
        self._in_a_thread: dict[str, Callable[..., Any]] = {
            "load_adapter": self._load_adapter,
            "unload_adapter": self._unload_adapter,
        }
        profiler = None if profiles is None else Profiler(profiles)
        self._between_steps: dict[str, Callable[[], str]] = (
            {}
            if profiler is None
            else {"start_profiler": profiler.start, "stop_profiler": profiler.stop}
        )
        self._connections: set[_Connection] = set()

    def start(self) -> None:
        self.loop.start()

    def attach(self, connection: socket.socket) -> None:
        """Serve whoever is at the other end, until they leave."""
        attached = _Connection(connection, self)
        self._connections.add(attached)
        attached.start(Hello(self.info))

    def close(self) -> None:
        """End what is running, and all connections. The engines stay open."""
        self._files.shutdown(cancel_futures=True)  # first, as it may wait for the loop
        self.loop.close()
        for connection in list(self._connections):
            connection.close()

    def state(self) -> HostState:
        """What changes; in any thread."""
        engines = {
            name: EngineState(self.loop.snapshots[name], rate(), self.loop.failures[name])
            for name, rate in self.loop.rates.items()
        }
        return HostState(engines, self.loop.admission.in_flight)

    def adapters(self) -> tuple[str, ...]:
        """Names; the same in all engines."""
        return self._engines[0].adapters.names

    def _load_adapter(self, name: str, folder: Path) -> None:
        """Read it while steps go on, then put it into all engines between two."""
        adapter = read_adapter(folder, self._engines[0].built.source.config)

        def add() -> None:
            for done, engine in enumerate(self._engines):
                try:
                    engine.adapters.add(name, adapter)
                except BaseException:
                    for before in self._engines[:done]:
                        before.adapters.remove(name)
                    raise

        self.loop.call(add).result()

    def _unload_adapter(self, name: str) -> None:
        def remove() -> None:
            for engine in self._engines:
                engine.adapters.remove(name)

        self.loop.call(remove).result()

    def detach(self, connection: "_Connection") -> None:
        """It is over: nobody is left to read what its requests would say."""
        self._connections.discard(connection)
        self.loop.abort_all(connection)

    def handle(self, connection: "_Connection", message: Any) -> None:
        """A message of an API process, in the thread of its connection."""
        match message:
            case Add(requests, use):
                failure = self.loop.add(requests, connection, use)
                if failure is not None:
                    events = [(request.number, Event.failed(failure)) for request in requests]
                    connection.send(Step.of(events))
            case Abort(number, output):
                self.loop.abort(connection, number, output)
            case Responded(method, route, status):
                self.metrics.responded(method, route, status)
            case Call(number, name) if name in self._at_once:
                connection.send(Reply(number, self._at_once[name]()))
            case Call(number, name, arguments):
                if name in self._in_a_thread:
                    called = self._files.submit(self._in_a_thread[name], *arguments)
                else:
                    called = self.loop.call(self._between_steps[name])
                called.add_done_callback(partial(_reply, connection, number))


def _reply(connection: "_Connection", number: int, called: Future[Any]) -> None:
    error = called.exception()
    if error is None:
        connection.send(Reply(number, called.result()))
    else:
        status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
        connection.send(Reply(number, None, Failure(str(error), status)))


class _Connection:
    """Two threads: one reads, and one writes, as the engines must not wait for who does not read.

    What is not read is bounded: then the connection is closed, and its requests end.
    """

    def __init__(self, connection: socket.socket, host: EngineHost) -> None:
        self._socket, self._host = connection, host
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._unread = 0
        self._lock = threading.Lock()

    def start(self, hello: Hello) -> None:
        self.send(hello)
        for function in (self._read, self._write):
            threading.Thread(target=function, name="gossamer connection", daemon=True).start()

    def send(self, message: Any) -> None:
        data = encode(message)
        with self._lock:
            self._unread += len(data)
            too_much = self._unread - len(data) > MOST_UNREAD
        if too_much:
            log.error("an API process has %d bytes to read; its connection ends", self._unread)
            self.close()
        else:
            self._outbox.put(data)

    def close(self) -> None:
        """Wakes both threads."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._outbox.put(None)

    def _read(self) -> None:
        try:
            while True:
                self._host.handle(self, receive(self._socket))
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("a message of an API process failed; its connection ends")
        finally:
            self.close()
            self._host.detach(self)

    def _write(self) -> None:
        with self._socket:
            while (data := self._outbox.get()) is not None:
                try:
                    self._socket.sendall(data)
                except OSError:
                    self.close()
                    return
                with self._lock:
                    self._unread -= len(data)
