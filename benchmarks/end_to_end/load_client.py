"""What the clients of `gossamer bench serve` cost: can they keep up with a fast server?

    python -m benchmarks.end_to_end.load_client --streams 256 --step 20

A server without a model sends each of its streams a token per step. The clients should see that
step as inter-token latency, and have time left.
"""

import asyncio
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Annotated

import typer

from gossamer.server.load.measures import quantiles
from gossamer.server.load.processes import clients
from gossamer.server.load.schedule import Load
from gossamer.server.load.target import Target

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
START = 60.0  # seconds


def event(content: bytes) -> bytes:
    """One event, in one chunk of HTTP, as servers send them."""
    data = b"data: " + content + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(text: str) -> bytes:
    """As Gossamer's server writes it."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    fields = {"id": f"cmpl-{'0' * 24}", "object": "text_completion", "created": 1 << 30}
    return event(json.dumps({**fields, "model": "none", "choices": [choice]}).encode())


def ending(tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": tokens}
    content = {
        "choices": [],
        "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 0}},
        "gossamer": {"kv": "none"},
    }
    return event(json.dumps(content).encode()) + event(b"[DONE]") + b"0\r\n\r\n"


class Streams:
    """Gives all streams a token at the same time, as an engine's step does."""

    def __init__(self, step: float) -> None:
        self._step, self._tick, self._token = step, asyncio.Event(), chunk(" token")

    async def tick(self) -> None:
        at = time.perf_counter()
        while True:
            at += self._step
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            self._tick.set()
            self._tick = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        tokens = json.loads(await reader.readexactly(length))["max_tokens"]
        writer.write(HEAD)
        for _ in range(tokens):
            await self._tick.wait()
            writer.write(self._token)
        writer.write(ending(tokens))
        await writer.drain()
        writer.close()


def serve(step: float, ready: Connection) -> None:
    async def run() -> None:
        streams = Streams(step)
        server = await asyncio.start_server(streams.answer, "127.0.0.1", 0, backlog=2048)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.gather(server.serve_forever(), streams.tick())

    asyncio.run(run())


@contextmanager
def serving(step: float) -> Iterator[Target]:
    """A server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(step, there), daemon=True)
    server.start()
    try:
        if not here.poll(START):
            raise RuntimeError("the server did not start")
        stats = {"model": "none", "vocab_size": 2}
        yield Target(f"http://127.0.0.1:{here.recv()}", None, stats)
    finally:
        server.terminate()
        server.join()


def measure(
    streams: Annotated[int, typer.Option(help="Number of streams at a time")] = 256,
    tokens: Annotated[int, typer.Option(help="Tokens of each")] = 250,
    step: Annotated[float, typer.Option(help="Milliseconds between tokens")] = 20.0,
    processes: Annotated[int, typer.Option(help="Number of processes of clients")] = 1,
) -> None:
    load = Load(requests=streams, inputs=(1, 1), outputs=(tokens, tokens))
    with serving(step / 1e3) as target, clients(processes) as sending:
        run = sending.send(target, load)
    if errors := [result.error for result in run.results if result.error]:
        raise RuntimeError(f"{len(errors)} requests failed: {errors[0]}")
    seconds = max(s.ended for s in run.results) - min(s.sent for s in run.results)
    count = sum(len(result.chunks) for result in run.results)
    each = run.busy * seconds * processes / count
    gaps = quantiles([gap for result in run.results for gap in result.gaps])
    print(f"{count / seconds:,.0f} tokens/s of {streams * 1e3 / step:,.0f} that were to be sent")
    print(f"clients busy {run.busy:.0%}, {each * 1e6:.1f} us per token")
    print(f"inter-token latency {gaps['p50']:.1f} ms (p50), {gaps['p99']:.1f} ms (p99) of {step:g}")


if __name__ == "__main__":
    typer.run(measure)
