"""What an engine looks like between two steps, for metrics and for the page."""

import threading
import time
from collections import deque
from dataclasses import dataclass

from gossamer.engine import Engine
from gossamer.kv.pages import PagePool

RATE_SECONDS = 5  # over which tokens per second are counted


@dataclass(frozen=True)
class Pages:
    """Of one pool. cached: not in use, but their content can still be found by its prefix."""

    total: int
    used: int
    cached: int
    bytes_each: int

    @classmethod
    def of(cls, pool: PagePool, bytes_each: int) -> "Pages":
        return cls(pool.size, pool.in_use, pool.idle, bytes_each)

    @property
    def free(self) -> int:
        return self.total - self.used - self.cached


@dataclass(frozen=True)
class Snapshot:
    """stored: pages as the layout keeps them; dense: of windows. Counts are since the start."""

    running: int
    waiting: int
    stored: Pages
    dense: Pages
    kv_bytes: int
    kv_bytes_dense: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    published_bytes: int
    fetched_bytes: int

    @classmethod
    def of(cls, engine: Engine) -> "Snapshot":
        """To be called in the thread that steps the engine."""
        size, manager, stats = engine.built.size, engine.manager, engine.stats
        handoff = engine.handoff
        return cls(
            running=len(engine.scheduler.running),
            waiting=len(engine.scheduler.waiting) + (0 if handoff is None else handoff.waiting),
            stored=Pages.of(manager.stored, size.stored_bytes),
            dense=Pages.of(manager.dense, size.dense_bytes),
            kv_bytes=engine.kv_bytes,
            kv_bytes_dense=engine.kv_bytes_dense,
            steps=stats.steps,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            output_tokens=stats.output_tokens,
            preemptions=stats.preemptions,
            published_bytes=0 if handoff is None else handoff.published_bytes,
            fetched_bytes=0 if handoff is None else handoff.fetched_bytes,
        )

    @property
    def saved_bytes(self) -> int:
        """Below 0 where pages of windows outweigh what compression saves."""
        return self.kv_bytes_dense - self.kv_bytes


@dataclass(frozen=True)
class EngineState:
    """failures: steps that raised since one did not."""

    seen: Snapshot
    tokens_per_second: float
    failures: int


@dataclass(frozen=True)
class HostState:
    """in_flight: sequences that are not finished, of all engines. replicas: of the engines."""

    engines: dict[str, EngineState]
    in_flight: int
    replicas: int = 1


class Rate:
    """Tokens per second of the last few seconds. Any thread may add and ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS + 1)

    def add(self, tokens: int) -> None:
        second = int(time.monotonic())
        with self._lock:
            if self._seconds and self._seconds[-1][0] == second:
                tokens += self._seconds.pop()[1]
            self._seconds.append((second, tokens))

    def __call__(self) -> float:
        now = time.monotonic()
        with self._lock:
            recent = [(s, n) for s, n in self._seconds if s > now - RATE_SECONDS]
        if not recent:
            return 0.0
        return sum(n for _, n in recent) / max(1.0, now - recent[0][0])
