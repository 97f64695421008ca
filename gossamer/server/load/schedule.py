"""The load: which requests are sent, and when."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from gossamer.workloads.requests import RequestMix


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
class Load(RequestMix):
    """Requests of a RequestMix, and how they are sent.

    rate: requests per second at random times (Poisson); None for all at once. concurrency: requests
    that are open at a time at most; None for all. leaving: share of clients that disconnect in the
    middle. kv: the cache to ask for. workload: the name of the one that the numbers come from.
    """

    requests: int = 100
    inputs: tuple[int, int] = (100, 500)
    outputs: tuple[int, int] = (20, 100)
    rate: float | None = None
    concurrency: int | None = None
    leaving: float = 0.0
    kv: str | None = None
    seed: int = 0
    workload: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; must be at least 1")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError(f"rate is {self.rate}; must be above 0 and finite")
        if not 0 <= self.leaving <= 1:
            raise ValueError(f"leaving is {self.leaving}; must be 0 to 1")

    def schedule(self, vocab: int) -> list[ScheduledRequest]:
        """The same for the same seed. All at once, the requests are those of the offline engine.

        Other rates have other tokens of the same lengths: the server's prefix cache would know what
        an earlier rate has sent.
        """
        drawn = self.draw(vocab, self.seed, "" if self.rate is None else f" at {self.rate}")
        leaves = [self._leave(i, request.output) for i, request in enumerate(drawn)]
        return [
            ScheduledRequest(request.ids, request.output, at, leave)
            for request, at, leave in zip(drawn, self._times(), leaves, strict=False)
        ]

    def _times(self) -> Iterator[float]:
        """The same pattern for each rate, faster or slower."""
        rng, at = random.Random(f"{self.seed} times"), 0.0
        while True:
            yield at
            at += rng.expovariate(1.0) / self.rate if self.rate is not None else 0.0

    def _leave(self, index: int, output: int) -> int | None:
        rng = random.Random(f"{self.seed} leaving {index}")
        return rng.randint(1, max(1, output // 2)) if rng.random() < self.leaving else None
