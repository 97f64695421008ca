"""A process of the API: HTTP, JSON, tokens and text."""

import asyncio
import socket
from functools import partial
from multiprocessing.connection import Connection

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop  # type: ignore[assignment]

from gossamer.server.app import create_api
from gossamer.server.child import READY, listen, set_up
from gossamer.server.gateway import Gateway
from gossamer.server.link import EngineLink
from gossamer.server.settings import Settings
from gossamer.server.uvicorn_server import Server


def main(settings: Settings, listening: socket.socket, pipe: Connection) -> None:
    """Serve at this socket until told to stop; then let requests finish. Told twice, end them."""
    set_up(settings.log_format)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings, listening, pipe))


async def _serve(settings: Settings, listening: socket.socket, pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    connections: asyncio.Queue[socket.socket] = asyncio.Queue()
    gateway = Gateway(partial(EngineLink, connections.get), settings.limits)
    app = create_api(gateway, settings)
    server = Server(app, listening, started=lambda: pipe.send(READY))

    def attach(connection: socket.socket) -> None:
        loop.call_soon_threadsafe(connections.put_nowait, connection)

    def stop() -> None:
        loop.call_soon_threadsafe(server.stop)

    listen(pipe, attach, stop)
    await server.serve()
