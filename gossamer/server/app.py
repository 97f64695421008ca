"""The ASGI application."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from gossamer._version import __version__
from gossamer.engine import LLM
from gossamer.server.context import Context
from gossamer.server.errors import APIError, failed, invalid
from gossamer.server.events import Failure
from gossamer.server.gateway import Gateway
from gossamer.server.host import EngineHost
from gossamer.server.keys import Keys
from gossamer.server.link import EngineLink
from gossamer.server.middleware import AllowedHosts, APIKey, BodyLimit, RequestLog
from gossamer.server.routes import adapters, generation, models, operations, page, responses
from gossamer.server.settings import Settings

log = logging.getLogger("gossamer.server")
MESSAGE_LENGTH = 200  # characters
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that left; only the log shows it


def create_app(engines: Mapping[str, LLM], settings: Settings) -> FastAPI:
    """An application over engines of this process, by KV spec; it closes them at its end.

    The first engine answers requests that do not name a cache. `gossamer serve` has processes of
    their own for engines and for applications.
    """
    host = EngineHost(engines, settings.limits.queue, settings.profiles)

    async def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        host.attach(theirs)
        return ours

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        host.start()
        yield
        await asyncio.to_thread(host.close)
        for llm in engines.values():
            llm.close()

    gateway = Gateway(partial(EngineLink, connect), settings.limits)
    app = create_api(gateway, settings, running)
    app.state.host = host
    return app


def create_api(
    gateway: Gateway,
    settings: Settings,
    around: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> FastAPI:
    """An application over what the gateway connects to. around: is entered while it runs."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with around():
            await gateway.start()
            yield
            await gateway.close()

    # No /docs: its page would load scripts from elsewhere.
    app = FastAPI(
        title="Gossamer", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.context = Context(gateway, settings)
    routes = (generation, responses, adapters, models, operations, page)
    for router in (each.router for each in routes):
        app.include_router(router)
    app.mount("/static", page.static, name="static")
    _add_middleware(app, settings, gateway)
    _add_handlers(app)
    return app


def _add_middleware(app: FastAPI, settings: Settings, gateway: Gateway) -> None:
    """The last one added is the outermost."""
    app.add_middleware(BodyLimit, limit=settings.limits.body)
    if settings.api_key is not None or settings.api_keys is not None:
        app.add_middleware(APIKey, keys=Keys(settings.api_key, settings.api_keys))
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    if settings.hosts:
        app.add_middleware(AllowedHosts, names=settings.hosts)
    app.add_middleware(RequestLog, responded=gateway.responded)


def _add_handlers(app: FastAPI) -> None:
    @app.exception_handler(APIError)
    async def known(_: Request, error: APIError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def bad_body(_: Request, error: RequestValidationError) -> Response:
        return invalid(error).response()

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        headers, message = dict(error.headers) if error.headers else None, str(error.detail)
        if isinstance(error.__cause__, UnicodeError | RecursionError | ValueError):
            message = f"the body cannot be read: {error.__cause__}"
        return APIError(error.status_code, message[:MESSAGE_LENGTH], headers=headers).response()

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def unknown(_: Request, error: Exception) -> Response:
        failure = Failure(str(error))
        log.error("%s: a request failed", failure.id, exc_info=error)
        return failed(failure).response()
