"""Serve an application until told to stop, and then let requests finish."""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from gossamer.server.context import Context

log = logging.getLogger("gossamer.server")
BACKLOG = 2048


class Server(uvicorn.Server):
    """listening: a bound socket. started: called when clients can connect."""

    def __init__(
        self,
        app: FastAPI,
        listening: socket.socket,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        self._context: Context = app.state.context
        self._listening, self._tell = listening, started
        logging.getLogger("uvicorn.access").disabled = True  # it writes whole URLs; see RequestLog
        limits = self._context.settings.limits
        super().__init__(
            uvicorn.Config(
                app,
                backlog=BACKLOG,
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(limits.drain)),
            )
        )

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve([self._listening] if sockets is None else sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are not this server's: whoever runs it calls `stop`."""
        yield

    def stop(self) -> None:
        """Drain: no new requests, running ones finish. The second time, end them."""
        if self.should_exit:
            self.force_exit = True
        self._context.gateway.draining = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        running = self._context.gateway.in_flight
        log.info("stopping; %d prompts are running or waiting", running)
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves the application as it is then
            await self._context.gateway.close()
