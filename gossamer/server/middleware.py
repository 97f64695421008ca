"""Around every request: an id and a line in the log, host and API key, the size of the body.

Plain ASGI: Starlette's convenient base class hides from routes that a client has left.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossamer.server.errors import APIError
from gossamer.server.keys import Key, Keys
from gossamer.server.logs import FIELDS

log = logging.getLogger("gossamer.server")
OPEN_PATHS = ("/", "/health", "/ready")  # for probes, and the page, which asks for the key
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")  # of a client, which answer and log repeat
OPEN_FOLDER = "/static/"


class RequestLog:
    """An id and a line in the log for each request. No prompts, no query strings, no keys.

    The id is the client's X-Request-Id where it is one. responded: called with method, route and
    status.
    """

    def __init__(self, app: ASGIApp, responded: Callable[[str, str, int], None]) -> None:
        self._app, self._responded = app, responded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(12)
        start, status = time.perf_counter(), 499
        state = scope.setdefault("state", {})
        state["request_id"] = name

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = name
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", None) or "(none)"
            seconds = time.perf_counter() - start
            self._responded(scope["method"], route, status)
            fields = {
                "id": name,
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 6),
                **_known(state, start),
            }
            line = (name, scope["method"], route, status, seconds)
            log.info("%s %s %s %d %.3fs", *line, extra={FIELDS: fields})


def _known(state: dict[str, Any], start: float) -> dict[str, Any]:
    """What routes and the check of the key have left for the log."""
    found: dict[str, Any] = {}
    if "key" in state:
        found["key"] = state["key"].name
    if "answer" in state:
        model, answer = state["answer"]
        found |= {"model": model, **answer.logged(start)}
    return found


class APIKey:
    """Refuses requests without one of the keys."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._open(scope):
            await self._app(scope, receive, send)
            return
        key = self._key(scope)
        if key is None:
            error = APIError(
                401,
                "the API key is missing or wrong; must be in `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
            return
        scope.setdefault("state", {})["key"] = key
        await self._app(scope, receive, send)

    @staticmethod
    def _open(scope: Scope) -> bool:
        path = scope["path"]
        return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)

    def _key(self, scope: Scope) -> Key | None:
        given = Headers(scope=scope).get("authorization", "")
        kind, _, key = given.partition(" ")
        found = self._keys.find(key.strip().encode("latin-1", "replace"))
        return found if kind.lower() == "bearer" else None


class AllowedHosts:
    """Refuses requests whose Host header is another server's.

    A page from elsewhere can let its own name point to this machine; to the browser, this server
    is then a part of that page's site.
    """

    def __init__(self, app: ASGIApp, names: tuple[str, ...]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._name(scope) not in self._names:
            valid = ", ".join(self._names)
            error = APIError(403, f"the Host header names another server; must be one of {valid}")
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _name(scope: Scope) -> str:
        """Without the port and the brackets of IPv6."""
        given = Headers(scope=scope).get("host", "").lower()
        return re.sub(r":\d*$", "", given).strip("[]")


class BodyLimit:
    """Refuses bodies that are too large, before they are in memory."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = APIError(
            413, f"the body is too large; must be at most {self._limit} bytes", code="too_large"
        )
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > self._limit:
            await error.response()(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:  # FastAPI lets this type through, and no other
                raise HTTPException(413, str(error))
            return message

        await self._app(scope, counted, send)
