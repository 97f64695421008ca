"""The clients: each sends its prompt, reads the stream, and notes when chunks came."""

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpcore
import httpx

from gossamer.server.load.network import Backend
from gossamer.server.load.schedule import ScheduledRequest
from gossamer.server.load.target import Target

TIMEOUT = 3600.0  # seconds of a whole request
DATA, DONE = b"data: ", b"data: [DONE]"
# httpcore has no class above these; sockets raise OSErrors.
FAILURES = (OSError, httpcore.NetworkError, httpcore.ProtocolError)


@dataclass
class ClientResult:
    """What one client got. Times are seconds after the start of the run.

    sent: when its request went out; chunks: when parts of the answer came. kv: the cache that
    answered. error: what went wrong; message: what was said about it; left: it disconnected as
    scheduled.
    """

    sent: float
    chunks: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    cached: int = 0
    kv: str | None = None
    ended: float = 0.0
    left: bool = False
    error: str | None = None
    message: str | None = None

    @property
    def first(self) -> float | None:
        """Seconds to the first chunk."""
        return self.chunks[0] - self.sent if self.chunks else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [b - a for a, b in zip(self.chunks, self.chunks[1:], strict=False)]

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first; None where there is no other."""
        if self.tokens < 2 or not self.chunks:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.tokens - 1)

    @property
    def whole(self) -> float:
        """Seconds from sending to the end."""
        return self.ended - self.sent


@dataclass
class Exchange:
    """A request, its body and what came back, with the time of each event.

    Events are parsed after the run: what a client parses, others wait for.
    """

    request: ScheduledRequest
    body: bytes
    result: ClientResult = field(default_factory=lambda: ClientResult(0.0))
    events: list[tuple[float, bytes]] = field(default_factory=list)

    def parsed(self) -> ClientResult:
        result, texts, done = self.result, list[str](), False
        for moment, event in self.events:
            if event == DONE:
                done = True
            elif event.startswith(DATA):
                self._add(json.loads(event.removeprefix(DATA)), moment, texts)
        result.text = "".join(texts)
        if not (done or result.left or result.error):
            result.error = "the stream ended early"
        return result

    def _add(self, chunk: dict[str, Any], moment: float, texts: list[str]) -> None:
        if "error" in chunk:
            self.result.error = f"error {chunk['error'].get('code')}"
            self.result.message = chunk["error"].get("message")
        elif usage := chunk.get("usage"):
            self.result.prompt_tokens = usage["prompt_tokens"]
            self.result.tokens = usage["completion_tokens"]
            self.result.cached = usage["prompt_tokens_details"]["cached_tokens"]
            self.result.kv = chunk["gossamer"]["kv"]
        elif text := chunk["choices"][0]["text"]:
            self.result.chunks.append(moment)
            texts.append(text)


async def run(
    target: Target,
    scheduled: Sequence[ScheduledRequest],
    concurrency: int | None = None,
    kv: str | None = None,
    start: float | None = None,
) -> list[ClientResult]:
    """Send everything at its time, or as soon as fewer than `concurrency` are open.

    start: by time.perf_counter(), what times are counted from; None for now.
    """
    exchanges = [Exchange(each, _body(target, each, kv)) for each in scheduled]
    start = time.perf_counter() if start is None else start
    slots = contextlib.nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
    wire = Wire(target, start)

    async def one(each: Exchange) -> None:
        await asyncio.sleep(max(0.0, each.request.at - (time.perf_counter() - start)))
        async with slots:
            await wire.exchange(each)

    await asyncio.gather(*(one(each) for each in exchanges))
    return [each.parsed() for each in exchanges]


def _body(target: Target, each: ScheduledRequest, kv: str | None) -> bytes:
    body: dict[str, Any] = {
        "model": target.stats["model"],
        "prompt": each.ids,
        "max_tokens": each.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body if kv is None else body | {"kv": kv}).encode()


class Wire:
    """A connection per request, as users have who know nothing of each other."""

    def __init__(self, target: Target, start: float) -> None:
        self._url = httpcore.URL(f"{target.url}/v1/completions")
        self._headers = [("Content-Type", "application/json"), *target.headers.items()]
        self._backend, self._start = Backend(), start
        # Of httpx, which also knows the certificates that the environment names.
        self._tls = httpx.create_ssl_context() if self._url.scheme == b"https" else None

    async def exchange(self, each: Exchange) -> None:
        result, patience = each.result, each.request.patience
        result.sent = time.perf_counter() - self._start
        try:
            async with (
                asyncio.timeout(TIMEOUT if patience is None else patience),
                httpcore.AsyncHTTPConnection(
                    self._url.origin, self._tls, network_backend=self._backend
                ) as connection,
                connection.stream(
                    "POST", self._url, headers=self._headers, content=each.body
                ) as answer,
            ):
                await self._read(answer, each)
        except TimeoutError:
            result.left = patience is not None
            result.error = None if result.left else f"no end after {TIMEOUT:.0f} s"
        except FAILURES as error:
            result.error, result.message = type(error).__name__, str(error)
        result.ended = time.perf_counter() - self._start

    async def _read(self, answer: httpcore.Response, each: Exchange) -> None:
        """Until the end, or until it is time to leave."""
        if answer.status != 200:
            each.result.error = f"status {answer.status}"
            each.result.message = _message(await answer.aread())
            return
        rest, leave = b"", each.request.leave
        async for part in answer.aiter_stream():
            moment = time.perf_counter() - self._start
            *events, rest = (rest + part).split(b"\n\n")
            each.events += [(moment, event) for event in events]
            if leave is not None and len(each.events) >= leave:
                each.result.left = True
                return


def _message(body: bytes) -> str:
    """What a refusal says: the message of OpenAI's JSON, or its text."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
