"""What an API process costs: can it keep up with a fast engine?

    python -m benchmarks.end_to_end.api_process --streams 64 --step 5

Real API processes and clients, and instead of an engine a loop that gives every open request a
random token of SmolLM2's vocabulary per step. Processor time is what the API processes took.
"""

import multiprocessing
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.engine import LLM
from gossamer.server import api_process
from gossamer.server.child import READY, send_socket
from gossamer.server.events import Event
from gossamer.server.host import EngineHost
from gossamer.server.load.measures import quantiles
from gossamer.server.load.processes import clients
from gossamer.server.load.schedule import Load
from gossamer.server.load.target import probe
from gossamer.server.settings import Limits, Settings
from gossamer.server.sockets import address, bind
from gossamer.server.wire import Add, Call, Hello, Reply, Step, encode, receive

MODEL, LONGEST = "smollm2", 2048
TICKS = os.sysconf("SC_CLK_TCK")


class Tokens:
    """One connection of what looks like an engine process; all of them step together."""

    def __init__(self, connection: socket.socket, host: EngineHost) -> None:
        self._socket, self._host = connection, host
        self._left: dict[int, int] = {}  # tokens that requests still get
        self._lock = threading.Lock()
        connection.sendall(encode(Hello(host.info)))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(EOFError, OSError):  # the end
            while True:
                self._handle(receive(self._socket))

    def _handle(self, message: Any) -> None:
        with self._lock:
            match message:
                case Add(requests):
                    self._left |= {r.number: r.params.max_tokens or 1 for r in requests}
                case Call(number, _):
                    self._socket.sendall(encode(Reply(number, self._host.state())))

    def step(self, chance: random.Random, vocab: int) -> None:
        with self._lock:
            events = []
            for number, left in list(self._left.items()):
                last = left == 1
                token = chance.randrange(vocab // 2, vocab)  # words, no special tokens
                events.append((number, Event(0, [token], (), "length" if last else None)))
                self._left[number] -= 1
                if last:
                    del self._left[number]
            if events:
                self._socket.sendall(encode(Step.of(events)))


def run_steps(connections: list[Tokens], seconds: float, vocab: int) -> None:
    chance, at = random.Random(0), time.perf_counter()
    while True:
        at = max(at + seconds, time.perf_counter())
        time.sleep(max(0.0, at - time.perf_counter()))
        for connection in connections:
            connection.step(chance, vocab)


@contextmanager
def serving(workers: int, step: float) -> Iterator[tuple[str, list[int]]]:
    """The address and the process ids of API processes."""
    context = multiprocessing.get_context("spawn")
    settings = Settings(model=MODEL, limits=Limits(queue=1 << 16))
    with LLM(MODEL, kv_memory="256MB", max_model_len=LONGEST) as llm, ExitStack() as stack:
        host = EngineHost({"dense": llm}, 1 << 16)
        connections, processes = [], []
        sockets = [stack.enter_context(found) for found in bind("127.0.0.1", 0, workers)]
        for listening in sockets:
            pipe, theirs = context.Pipe()
            stack.enter_context(pipe)  # while it is open, the process runs
            arguments = (settings, listening, theirs)
            process = context.Process(target=api_process.main, args=arguments, daemon=True)
            process.start()
            ours, other = socket.socketpair()
            send_socket(pipe, process.pid or 0, other)
            other.close()
            connections.append(Tokens(ours, host))
            if pipe.recv() != READY:
                raise RuntimeError("an API process did not start")
            processes.append(process)
            stack.callback(process.kill)
        vocab = host.info.engines["dense"].vocab_size
        steps = (connections, step, vocab)
        threading.Thread(target=run_steps, args=steps, daemon=True).start()
        yield address(sockets[0]), [process.pid or 0 for process in processes]


def processor_seconds(pids: list[int]) -> float:
    """User and system time of these processes."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / TICKS


def measure(
    streams: Annotated[int, typer.Option(help="Number of streams at a time")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens of each")] = 250,
    step: Annotated[float, typer.Option(help="Milliseconds of a step")] = 5.0,
    workers: Annotated[int, typer.Option("--api-workers", help="Number of API processes")] = 1,
    processes: Annotated[int, typer.Option(help="Number of processes of clients")] = 1,
) -> None:
    load = Load(requests=streams, inputs=(100, 100), outputs=(tokens, tokens))
    with serving(workers, step / 1e3) as (url, pids), clients(processes) as sending:
        target = probe(url)
        sending.send(target, load)  # connections, caches
        before = processor_seconds(pids)
        run = sending.send(target, load)
        used = processor_seconds(pids) - before
    if errors := [result.error for result in run.results if result.error]:
        raise RuntimeError(f"{len(errors)} requests failed: {errors[0]}")
    seconds = max(s.ended for s in run.results) - min(s.sent for s in run.results)
    count = sum(result.tokens for result in run.results)
    gaps = quantiles([gap for result in run.results for gap in result.gaps])
    typer.echo(
        f"{count / seconds:,.0f} tokens/s of {streams / step * 1e3:,.0f} through {workers} API "
        f"processes: {used / count * 1e6:.1f} us of processor time per token, between chunks "
        f"p50 {gaps['p50']:.1f} ms, p99 {gaps['p99']:.1f} ms"
    )


if __name__ == "__main__":
    typer.run(measure)
