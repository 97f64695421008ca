"""Around every request: an id and a line in the log, host and API key, the size of the body.

Plain ASGI: Starlette's convenient base class hides from routes that a client has left.
"""

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gossamer.server.errors import APIError

log = logging.getLogger("gossamer.server")
OPEN_PATHS = ("/", "/health")  # for probes, and the page, which asks for the key
OPEN_FOLDER = "/static/"


class RequestLog:
    """An id and a line in the log for each request. No prompts, no query strings.

    responded: called with method, route and status.
    """

    def __init__(self, app: ASGIApp, responded: Callable[[str, str, int], None]) -> None:
        self._app, self._responded = app, responded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name, start, status = secrets.token_hex(12), time.perf_counter(), 499
        scope.setdefault("state", {})["request_id"] = name

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
            log.info("%s %s %s %d %.3fs", name, scope["method"], route, status, seconds)


class APIKey:
    """Refuses requests without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._digest = app, _digest(key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._open(scope) and not self._has_key(scope):
            error = APIError(
                401,
                "the API key is missing or wrong; must be in `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _open(scope: Scope) -> bool:
        path = scope["path"]
        return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)

    def _has_key(self, scope: Scope) -> bool:
        """Digests are of equal length, so that the time tells nothing of the key."""
        given = Headers(scope=scope).get("authorization", "")
        kind, _, key = given.partition(" ")
        same = hmac.compare_digest(_digest(key.strip().encode("latin-1", "replace")), self._digest)
        return same and kind.lower() == "bearer"


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


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
