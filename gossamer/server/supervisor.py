"""The process that `gossamer serve` is: it starts the others, watches them, and stops them."""

import logging
import multiprocessing
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from gossamer.server import api_process, engine_process
from gossamer.server.child import STOP, Refused, send_socket
from gossamer.server.engine_process import EngineStart
from gossamer.server.logs import set_up_log
from gossamer.server.settings import Settings
from gossamer.server.sockets import address

log = logging.getLogger("gossamer.server")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
RESTARTS, RESTART_SECONDS = 3, 600.0  # so many within so long; then something is wrong for good
PATIENCE = 10.0  # seconds for the engine process to end when told
REFUSALS = {kind.__name__: kind for kind in (ValueError, FileNotFoundError, ImportError, OSError)}


@dataclass
class _Child:
    process: BaseProcess
    pipe: Connection
    ready: bool = False

    def is_ready(self) -> None:
        self.ready = True
        log.info("%s: process %d is ready", self.process.name, self.process.pid)

    def tell(self, word: str) -> None:
        with suppress(OSError):  # it is gone, which its sentinel says
            self.pipe.send(word)

    def end(self, patience: float) -> None:
        """In any case, even where it does not listen."""
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


class Supervisor:
    """One engine process, and an API process for each socket.

    A process that dies is started again, and the others go on: without an engine, the API answers
    503; without an API process, its clients lose their connections, and the engine its requests.
    """

    def __init__(self, start: EngineStart, settings: Settings, sockets: list[socket.socket]):
        self._start, self._settings, self._sockets = start, settings, sockets
        self._engine: _Child | None = None
        self._apis: dict[int, _Child] = {}
        self._deaths: deque[float] = deque(maxlen=RESTARTS)
        self._draining, self._failed = False, False
        self._woken, self._waker = os.pipe()

    def run(self) -> int:
        """Serve until a signal; the exit code. Raises what the first start of an engine raised."""
        set_up_log(self._settings.log_format)
        try:
            self._engine = self._spawn_engine()
            self._await_first()
            before = {number: signal.signal(number, self._signalled) for number in SIGNALS}
            try:
                self._apis = {i: self._spawn_api(i) for i in range(len(self._sockets))}
                while self._apis:
                    self._watch()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        finally:
            self._end_all()
        log.info("stopped")
        return 1 if self._failed else 0

    # ---- processes --------------------------------------------------------------------------

    def _spawn(self, name: str, target: Callable[..., None], *arguments: Any) -> _Child:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        with theirs:  # only the child's copy may stay open, or its end would not show
            process = context.Process(target=target, args=(*arguments, theirs), name=name)
            process.start()
        return _Child(process, ours)

    def _spawn_engine(self) -> _Child:
        return self._spawn("engine", engine_process.main, self._start)

    def _spawn_api(self, i: int) -> _Child:
        api = self._spawn(f"api {i}", api_process.main, self._settings, self._sockets[i])
        self._connect(api)
        return api

    def _connect(self, api: _Child) -> None:
        """Give both their end of a new connection, unless the engine is not there yet."""
        engine = self._engine
        if engine is None or not engine.ready:
            return
        ours, theirs = socket.socketpair()
        with ours, theirs, suppress(OSError):  # whoever is gone will be noticed
            send_socket(engine.pipe, engine.process.pid or 0, theirs)
            send_socket(api.pipe, api.process.pid or 0, ours)

    def _await_first(self) -> None:
        """Until the engines are loaded, or cannot be."""
        assert self._engine is not None, "spawned"
        try:
            said = self._engine.pipe.recv()
        except EOFError:
            self._engine.process.join()
            raise OSError(
                f"the engine process ended with exit code {self._engine.process.exitcode}"
            ) from None
        if isinstance(said, Refused):
            raise REFUSALS.get(said.kind, OSError)(said.message)
        self._engine.is_ready()

    # ---- watching ---------------------------------------------------------------------------

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        os.write(self._waker, b"s")

    def _watch(self) -> None:
        """Until something happens, and what to do then."""
        children = [*self._apis.values(), *([self._engine] if self._engine else [])]
        ends = [end for child in children for end in (child.process.sentinel, child.pipe)]
        found = set(wait([self._woken, *ends]))
        if self._woken in found:
            os.read(self._woken, 64)
            self._drain()
        for child in children:
            if child.pipe in found:
                self._hear(child)
        for i, api in list(self._apis.items()):
            if api.process.sentinel in found:
                self._api_died(i, api)
        if self._engine is not None and self._engine.process.sentinel in found:
            self._engine_died(self._engine)

    def _hear(self, child: _Child) -> None:
        try:
            said = child.pipe.recv()
        except (EOFError, OSError):
            return  # its sentinel says the same
        if isinstance(said, Refused):
            log.error("the engine cannot be loaded: %s", said.message)
            return
        child.is_ready()
        if child is self._engine:
            for api in self._apis.values():
                self._connect(api)
        elif all(api.ready for api in self._apis.values()):
            log.info("listening on %s", address(self._sockets[0]))

    def _drain(self) -> None:
        self._draining = True
        for api in self._apis.values():
            if api.ready:
                api.tell(STOP)
            else:  # it has no request yet, and may wait for an engine that never comes
                api.process.kill()

    def _api_died(self, i: int, api: _Child) -> None:
        api.end(0)
        if self._draining:
            del self._apis[i]
            return
        log.error("%s ended with exit code %s", api.process.name, api.process.exitcode)
        if self._may_restart():
            self._apis[i] = self._spawn_api(i)
        else:
            del self._apis[i]

    def _engine_died(self, engine: _Child) -> None:
        engine.end(0)
        self._engine = None
        log.error("the engine process ended with exit code %s", engine.process.exitcode)
        if not self._draining and self._may_restart():
            self._engine = self._spawn_engine()

    def _may_restart(self) -> bool:
        """Unless that was one time too many; then everything stops."""
        now = time.monotonic()
        if len(self._deaths) == RESTARTS and now - self._deaths[0] < RESTART_SECONDS:
            log.error("that was death %d within %d s; stopping", RESTARTS + 1, RESTART_SECONDS)
            self._failed = True
            self._drain()
            return False
        self._deaths.append(now)
        return True

    def _end_all(self) -> None:
        for api in self._apis.values():
            api.pipe.close()  # which ends it at once
            api.end(PATIENCE)
        if self._engine is not None:
            self._engine.tell(STOP)
            self._engine.end(PATIENCE if self._engine.ready else 0)
        os.close(self._woken)
        os.close(self._waker)
