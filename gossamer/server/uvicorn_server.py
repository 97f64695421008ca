"""Serve the application until a signal comes, and then let requests finish."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from gossamer.server.context import Context

log = logging.getLogger("gossamer.server")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
BACKLOG = 2048


class Server(uvicorn.Server):
    """The first signal drains: no new requests, running ones finish. A second one ends them."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self._context: Context = app.state.context
        logging.getLogger("uvicorn.access").disabled = True  # it writes whole URLs; see RequestLog
        limits = self._context.settings.limits
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                backlog=BACKLOG,
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(limits.drain)),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a server that was stopped in order has no reason to die by a signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self._context.gateway.draining = True
        self.should_exit = True

    @property
    def port(self) -> int:
        """Where it listens; of use where port 0 was asked for."""
        return int(self.servers[0].sockets[0].getsockname()[1])

    async def startup(self, sockets: object = None) -> None:
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            log.info("listening on http://%s:%d", _written(self.config.host), self.port)

    async def shutdown(self, sockets: object = None) -> None:
        running = self._context.gateway.in_flight
        log.info("stopping; %d sequences are running or waiting", running)
        await super().shutdown(sockets)  # type: ignore[arg-type]
        if self.force_exit:  # uvicorn leaves the application as it is then
            await self._context.gateway.close()
        log.info("stopped")


def bind(host: str, port: int) -> socket.socket:
    """The address, reserved; nobody can connect before the server runs. Raises OSError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol's name: asyncio sends small pieces at once (TCP_NODELAY) only then.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        raise OSError(f"{host}:{port} cannot be served: {error.strerror or error}") from None
    return found


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT."""
    host, port = listening.getsockname()[:2]
    asyncio.run(Server(app, host, port).serve(sockets=[listening]))


def _written(host: str) -> str:
    return f"[{host}]" if ":" in host else host
