"""Answers to lines: what the server would answer, of engines in this process and without HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import httpx

from gossamer.batch.lines import Line
from gossamer.batch.request import Request, parse
from gossamer.batch.results import OK, Result
from gossamer.engine import LLM
from gossamer.server import Settings, create_app
from gossamer.server.errors import APIError

BASE = "http://batch"  # of URLs that nobody resolves
Take = Callable[[Result], None]
JSON = {"Content-Type": "application/json"}


class EngineFailedError(Exception):
    """The engine fails whatever it is asked."""


class Answers:
    """Runs lines through the server's application. See `answering`."""

    def __init__(self, client: httpx.AsyncClient, settings: Settings) -> None:
        self._client, self._settings = client, settings

    async def to(self, lines: Iterator[Line], in_flight: int, take: Take) -> None:
        """Every line has one result. EngineFailedError if the engine fails for good.

        in_flight: how many at a time, so many are in memory.
        """
        while failed := await self._together(lines, in_flight, take):
            await self._again(failed, take)

    async def _together(self, lines: Iterator[Line], in_flight: int, take: Take) -> list[Line]:
        """Until there are no more, or the engine has failed; those that it failed."""
        failed: list[Line] = []
        reason: Result | None = None

        async def work() -> None:
            nonlocal reason
            while not failed and (line := next(lines, None)) is not None:
                result = await self._answer(line)
                if result.engine_failed:
                    failed.append(line)
                    reason = result
                else:
                    take(result)
                await asyncio.sleep(0)  # a line that is no request waits for nothing

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if reason is not None:
            await self._check_engine(reason)
        return failed

    async def _again(self, lines: list[Line], take: Take) -> None:
        """One that makes the engine fail takes all others of its step with it.

        So they go in halves, until it is alone. Only then is the failure its result.
        """
        if len(lines) == 1:
            result = await self._answer(lines[0])
            if result.engine_failed:
                await self._check_engine(result)
            take(result)
            return
        middle = len(lines) // 2
        for half in (lines[:middle], lines[middle:]):
            if failed := await self._together(iter(half), len(half), take):
                await self._again(failed, take)

    async def _answer(self, line: Line) -> Result:
        if line.content is None:
            most = self._settings.limits.body
            message = f"the line is too long; its body must be at most {most} bytes"
            error = APIError(413, message, code="too_large")
            return Result(line.number, None, error=error)
        custom_id, request = parse(line.content)
        if line.repeats:
            message = f"custom_id is {custom_id!r}, as in an earlier line; must be a new one"
            request = APIError(400, message, param="custom_id", code="duplicate_custom_id")
        if isinstance(request, APIError):
            return Result(line.number, custom_id, error=request)
        response = await self._post(request)
        name = response.headers.get("x-request-id")
        return Result(line.number, custom_id, response.status_code, name, response.json())

    async def _post(self, request: Request) -> httpx.Response:
        return await self._client.post(request.url, content=request.body, headers=JSON)

    async def _check_engine(self, result: Result) -> None:
        """Raises EngineFailedError unless it can still do the least there is to do."""
        body = {"model": self._settings.model, "prompt": [0], "max_tokens": 1}
        response = await self._client.post("/v1/completions", json=body)
        if response.status_code != OK:
            raise EngineFailedError(result.body["error"]["message"])


@asynccontextmanager
async def answering(engines: dict[str, LLM], settings: Settings) -> AsyncIterator[Answers]:
    """Closes the engines at its end."""
    app = create_app(engines, settings)
    # An exception of a route becomes a response, as it does over HTTP.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url=BASE)
    async with app.router.lifespan_context(app), client:
        yield Answers(client, settings)
