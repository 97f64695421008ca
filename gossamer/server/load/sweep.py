"""A load test: the same load at one rate or at several, one after another."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gossamer.server.load.client import ClientResult
from gossamer.server.load.measures import record
from gossamer.server.load.processes import clients
from gossamer.server.load.schedule import Load
from gossamer.server.load.target import Target
from gossamer.workloads.bounds import Bounds

BUSY = 0.7  # above, requests wait for clients
LEAST = 1.0  # second; of a shorter run, most is preparation
ALL_AT_ONCE = (None,)


@dataclass(frozen=True, kw_only=True)
class LoadTest:
    """warm_up: requests before, which are not measured. processes: of clients."""

    load: Load
    rates: tuple[float | None, ...] = ALL_AT_ONCE
    bounds: Bounds | None = None
    warm_up: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        for name, least in (("warm_up", 0), ("processes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; must be at least {least}")
        self.loads()

    def loads(self) -> list[Load]:
        """One for each rate."""
        return [replace(self.load, rate=rate) for rate in self.rates]

    def run(self, target: Target) -> Iterator[tuple[dict[str, Any], list[ClientResult]]]:
        """A record for each rate, and what its clients got, as soon as it is there."""
        with clients(self.processes) as sending:
            if self.warm_up:
                # Other tokens than those that are measured: a prefix cache would know them.
                first = replace(self.load, requests=self.warm_up, seed=self.load.seed + 1)
                sending.send(target, replace(first, leaving=0.0))
            for load in self.loads():
                run = sending.send(target, load)
                client = {"processes": self.processes, "busy": run.busy, "warm_up": self.warm_up}
                yield record(target, load, run.results, self.bounds, **client), run.results


def warnings(found: dict[str, Any], results: list[ClientResult]) -> list[str]:
    """What a reader of the numbers has to know."""
    lines = []
    if failed := next((result for result in results if result.error), None):
        lines.append(f"the first error is {failed.error}: {failed.message}")
    if found["cached_tokens"] > found["completed"] * found["load"]["prefix"]:
        lines.append(
            f"{found['cached_tokens']} prompt tokens were in the server's prefix cache, more than "
            "the prompts share; another --seed has other tokens"
        )
    if found["client"]["busy"] > BUSY and found["seconds"] > LEAST:
        lines.append(
            f"the clients were busy {found['client']['busy']:.0%} of the time and may be late "
            "themselves; --processes makes more of them"
        )
    return lines
