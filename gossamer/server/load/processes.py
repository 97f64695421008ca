"""Processes of clients: one reads some ten thousand tokens per second at most."""

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier

from gossamer.server.load.client import ClientResult, run
from gossamer.server.load.schedule import Load, ScheduledRequest
from gossamer.server.load.target import Target

START = 120.0  # seconds that processes have to start
LEAD = 0.5  # seconds in which they get their requests


@dataclass(frozen=True)
class Run:
    """busy: share of its time that the busiest process of clients was at work."""

    results: list[ClientResult]
    busy: float


@dataclass(frozen=True)
class Clients:
    """pool: of processes; None for this one."""

    processes: int = 1
    pool: Pool | None = None

    def send(self, target: Target, load: Load) -> Run:
        """All requests of a load, each process its part of them, in turns."""
        scheduled = load.schedule(target.stats["vocab_size"])
        if self.pool is None:
            return _run(target, scheduled, load.concurrency, load.kv)
        count = min(self.processes, len(scheduled), load.concurrency or self.processes)
        slots = [
            None if load.concurrency is None else (load.concurrency + i) // count
            for i in range(count)
        ]
        start = time.perf_counter() + LEAD  # the same clock in all processes
        parts = [(target, scheduled[i::count], slots[i], load.kv, start) for i in range(count)]
        runs = self.pool.starmap(_run, parts, chunksize=1)
        results = [runs[i % count].results[i // count] for i in range(len(scheduled))]
        return Run(results, max(run.busy for run in runs))


@contextmanager
def clients(processes: int) -> Iterator[Clients]:
    """Processes that are ready; ended in the end."""
    if processes == 1:
        yield Clients()
        return
    context = multiprocessing.get_context("spawn")  # forks of threads may hang
    ready = context.Barrier(processes + 1)
    with context.Pool(processes, _ready, (ready,)) as pool:
        ready.wait(START)
        yield Clients(processes, pool)


def _ready(barrier: Barrier) -> None:
    """In a process that has imported this module, and with it what clients need."""
    barrier.wait(START)


@contextmanager
def _no_collections() -> Iterator[None]:
    """All clients would wait for the garbage collector, and it would find next to nothing."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _run(
    target: Target,
    scheduled: Sequence[ScheduledRequest],
    concurrency: int | None,
    kv: str | None,
    start: float | None = None,
) -> Run:
    busy, wall = time.thread_time(), time.perf_counter()
    with _no_collections():
        results = asyncio.run(run(target, scheduled, concurrency, kv, start))
    return Run(results, (time.thread_time() - busy) / (time.perf_counter() - wall))
