"""The clients: each sends its prompt, reads the stream, and notes when chunks came."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from gossamer.server.load.workload import ScheduledRequest

TIMEOUT = httpx.Timeout(600.0, connect=30.0)


@dataclass
class ClientResult:
    """What one client got. Times are seconds after the start of the run.

    sent: when its request went out; chunks: when parts of the answer came. error: what went
    wrong; left: it disconnected as scheduled.
    """

    sent: float
    chunks: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    cached: int = 0
    ended: float = 0.0
    left: bool = False
    error: str | None = None

    @property
    def first(self) -> float | None:
        """Seconds to the first chunk."""
        return self.chunks[0] - self.sent if self.chunks else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [b - a for a, b in zip(self.chunks, self.chunks[1:], strict=False)]


@dataclass(frozen=True)
class Target:
    """A server, and its stats."""

    url: str
    key: str | None
    stats: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def probe(url: str, key: str | None = None) -> Target:
    """The server at this address. Raises ConnectionError where no Gossamer answers."""
    url = url.rstrip("/").removesuffix("/v1")
    try:
        answer = httpx.get(
            f"{url}/v1/gossamer/stats", headers=Target(url, key, {}).headers, timeout=30
        )
        answer.raise_for_status()
        return Target(url, key, answer.json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ConnectionError(f"{url}: no Gossamer server answers there: {error}") from None


async def run(
    target: Target,
    scheduled: Sequence[ScheduledRequest],
    concurrency: int,
    kv: str | None = None,
    start: float | None = None,
) -> list[ClientResult]:
    """Send everything at its time, or as soon as fewer than `concurrency` are open.

    start: by time.perf_counter(), what times are counted from; None for now.
    """
    start = time.perf_counter() if start is None else start
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
    slots = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(
        base_url=target.url, headers=target.headers, timeout=TIMEOUT, limits=limits
    ) as client:

        async def one(each: ScheduledRequest) -> ClientResult:
            await asyncio.sleep(max(0.0, each.at - (time.perf_counter() - start)))
            async with slots:
                return await _send(client, _body(target, each, kv), each, start)

        return await asyncio.gather(*(one(each) for each in scheduled))


def _body(target: Target, each: ScheduledRequest, kv: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": target.stats["model"],
        "prompt": list(each.ids),
        "max_tokens": each.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body if kv is None else body | {"kv": kv}


async def _send(
    client: httpx.AsyncClient, body: dict[str, Any], each: ScheduledRequest, start: float
) -> ClientResult:
    result = ClientResult(time.perf_counter() - start)
    try:
        async with (
            asyncio.timeout(each.patience),
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            if answer.status_code != 200:
                await answer.aread()
                result.error = f"status {answer.status_code}"
            else:
                await _read(answer, result, each.leave, start)
    except TimeoutError:
        result.left = True
    except httpx.HTTPError as error:
        result.error = type(error).__name__
    result.ended = time.perf_counter() - start
    return result


async def _read(
    answer: httpx.Response, result: ClientResult, leave: int | None, start: float
) -> None:
    """Until the end, or until it is time to leave."""
    done = False
    async for line in answer.aiter_lines():
        if not line.startswith("data: "):
            continue
        done = line == "data: [DONE]"
        if done:
            break
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            result.error = f"error {chunk['error'].get('code')}"
        elif chunk.get("usage"):
            result.tokens = chunk["usage"]["completion_tokens"]
            result.cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        elif chunk["choices"][0]["text"]:
            result.chunks.append(time.perf_counter() - start)
            result.text += chunk["choices"][0]["text"]
        if leave is not None and len(result.chunks) >= leave:
            result.left = True
            return
    if not done and result.error is None:
        result.error = "the stream ended early"
