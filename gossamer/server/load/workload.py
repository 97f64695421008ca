"""The load: which requests are sent, and when."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduledRequest:
    """A prompt, the tokens wanted after it, and when to send it, in seconds after the start.

    leave: chunks of the answer after which the client disconnects; patience: seconds after which it
    does, whatever came until then. None to stay.
    """

    ids: tuple[int, ...]
    output: int
    at: float
    leave: int | None = None
    patience: float | None = None


@dataclass(frozen=True, kw_only=True)
class Load:
    """rate: requests per second at random times (Poisson); None for all at once.

    concurrency: requests that are open at a time at most. inputs, outputs: least and most tokens.
    prefix: tokens that begin each prompt, on top of `inputs`; there are `prefixes` different ones.
    leaving: share of clients that disconnect in the middle. kv: the cache to ask for.
    """

    requests: int = 100
    rate: float | None = None
    concurrency: int = 32
    inputs: tuple[int, int] = (100, 500)
    outputs: tuple[int, int] = (20, 100)
    prefix: int = 0
    prefixes: int = 1
    leaving: float = 0.0
    kv: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("requests", 1), ("concurrency", 1), ("prefix", 0), ("prefixes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; must be at least {least}")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError(f"rate is {self.rate}; must be above 0 and finite")
        if not 0 <= self.leaving <= 1:
            raise ValueError(f"leaving is {self.leaving}; must be 0 to 1")

    def schedule(self, vocab: int) -> list[ScheduledRequest]:
        """The same for the same seed: lengths and tokens drawn uniformly."""
        rng = random.Random(self.seed)
        starts = [self._ids(rng, vocab, self.prefix) for _ in range(self.prefixes)]
        at, scheduled = 0.0, []
        for _ in range(self.requests):
            ids = rng.choice(starts) + self._ids(rng, vocab, rng.randint(*self.inputs))
            output = rng.randint(*self.outputs)
            leaves = rng.random() < self.leaving
            leave = rng.randint(1, max(1, output // 2)) if leaves else None
            scheduled.append(ScheduledRequest(ids, output, at, leave))
            at += rng.expovariate(self.rate) if self.rate is not None else 0.0
        return scheduled

    @staticmethod
    def _ids(rng: random.Random, vocab: int, count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(vocab), k=count))
