"""Server-sent events, and clients that disconnect."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gossamer.server.errors import APIError
from gossamer.server.gateway import Subscription

T = TypeVar("T")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"


def event(content: dict[str, Any], *, named: bool = False) -> bytes:
    """named: by its `type`."""
    name = f"event: {content['type']}\n" if named else ""
    data = json.dumps(content, ensure_ascii=False)
    return f"{name}data: {data}\n\n".encode("utf-8", "replace")


class EventStream(StreamingResponse):
    """Server-sent events of a subscription, which is aborted when the client is gone.

    named: with the types of events, an error as one more, and nothing after the last.
    """

    def __init__(
        self,
        subscription: Subscription,
        content: AsyncIterator[dict[str, Any]],
        *,
        named: bool = False,
    ) -> None:
        events = _named(content) if named else _events(content)
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._subscription = subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # a generator that waits for nothing is not told of a client that left
            self._subscription.abort()


async def _events(content: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    try:
        async for each in content:
            yield event(each)
    except APIError as error:  # too late for a status
        yield event(error.body())
    yield DONE


async def _named(content: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    number = 0
    try:
        async for each in content:
            yield event(each, named=True)
            number = each["sequence_number"] + 1
    except APIError as error:
        yield event({**error.event(), "sequence_number": number}, named=True)


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled by ClientDisconnect when nobody waits for it."""
    task, disconnected = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, disconnected):
            each.cancel()
        await asyncio.gather(task, disconnected, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
