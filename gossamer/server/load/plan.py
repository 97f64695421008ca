"""Who asks what, and when."""

import random
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Planned:
    """A prompt, the tokens wanted after it, seconds after the start, and when to leave.

    leave: after so many pieces of the answer the client hangs up; patience: after so many seconds,
    whatever came until then. None to stay.
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
    leaving: share of clients that hang up in the middle. kv: the cache to ask for.
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

    def plan(self, vocab: int) -> list[Planned]:
        """The same for the same seed: lengths and tokens drawn uniformly."""
        chance = random.Random(self.seed)
        starts = [self._ids(chance, vocab, self.prefix) for _ in range(self.prefixes)]
        at, planned = 0.0, []
        for _ in range(self.requests):
            ids = chance.choice(starts) + self._ids(chance, vocab, chance.randint(*self.inputs))
            output = chance.randint(*self.outputs)
            leaves = chance.random() < self.leaving
            leave = chance.randint(1, max(1, output // 2)) if leaves else None
            planned.append(Planned(ids, output, at, leave))
            at += chance.expovariate(self.rate) if self.rate is not None else 0.0
        return planned

    @staticmethod
    def _ids(chance: random.Random, vocab: int, count: int) -> tuple[int, ...]:
        return tuple(chance.choices(range(vocab), k=count))

    def facts(self) -> dict[str, Any]:
        return asdict(self)
