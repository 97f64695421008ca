"""The clients: each sends its prompt, reads the stream, and notes when things came."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from gossamer.server.load.plan import Planned

TIMEOUT = httpx.Timeout(600.0, connect=30.0)


@dataclass
class Seen:
    """What one client saw. Times are seconds after the start of the run.

    sent: when its request went out; pieces: when parts of the answer came. error: what went
    wrong; left: it hung up as planned.
    """

    sent: float
    pieces: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    cached: int = 0
    ended: float = 0.0
    left: bool = False
    error: str | None = None

    @property
    def first(self) -> float | None:
        """Seconds to the first piece."""
        return self.pieces[0] - self.sent if self.pieces else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [b - a for a, b in zip(self.pieces, self.pieces[1:], strict=False)]


@dataclass(frozen=True)
class Target:
    """A server, and what it says of itself."""

    url: str
    key: str | None
    stats: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def look(url: str, key: str | None = None) -> Target:
    """Raises ConnectionError where no Gossamer answers."""
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
    planned: Sequence[Planned],
    concurrency: int,
    kv: str | None = None,
    start: float | None = None,
) -> list[Seen]:
    """Send everything at its time, or as soon as fewer than `concurrency` are open.

    start: by time.perf_counter(), what times are counted from; None for now.
    """
    start = time.perf_counter() if start is None else start
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
    open_ones = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(
        base_url=target.url, headers=target.headers, timeout=TIMEOUT, limits=limits
    ) as client:

        async def one(each: Planned) -> Seen:
            await asyncio.sleep(max(0.0, each.at - (time.perf_counter() - start)))
            async with open_ones:
                return await _ask(client, _body(target, each, kv), each, start)

        return await asyncio.gather(*(one(each) for each in planned))


def _body(target: Target, each: Planned, kv: str | None) -> dict[str, Any]:
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


async def _ask(
    client: httpx.AsyncClient, body: dict[str, Any], each: Planned, start: float
) -> Seen:
    seen = Seen(time.perf_counter() - start)
    try:
        async with (
            asyncio.timeout(each.patience),
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            if answer.status_code != 200:
                await answer.aread()
                seen.error = f"status {answer.status_code}"
            else:
                await _read(answer, seen, each.leave, start)
    except TimeoutError:
        seen.left = True
    except httpx.HTTPError as error:
        seen.error = type(error).__name__
    seen.ended = time.perf_counter() - start
    return seen


async def _read(answer: httpx.Response, seen: Seen, leave: int | None, start: float) -> None:
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
            seen.error = f"error {chunk['error'].get('code')}"
        elif chunk.get("usage"):
            seen.tokens = chunk["usage"]["completion_tokens"]
            seen.cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        elif chunk["choices"][0]["text"]:
            seen.pieces.append(time.perf_counter() - start)
            seen.text += chunk["choices"][0]["text"]
        if leave is not None and len(seen.pieces) >= leave:
            seen.left = True
            return
    if not done and seen.error is None:
        seen.error = "the stream ended early"
