"""How the tuner times calls, and what of its budget is left."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gossamer.bench.timing import benchmark_kernel

Show = Callable[[float, str], None]  # share of the budget that is spent, and what goes on
Timer = Callable[[Callable[[], Any], torch.device, bool], float]


@dataclass
class Clock:
    """The budget, and where it goes."""

    budget: float
    started: float = field(default_factory=time.perf_counter)
    reserved: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def passed(self) -> float:
        return time.perf_counter() - self.started

    @property
    def over(self) -> bool:
        return self.passed + self.reserved >= self.budget

    def timed(self, what: str, call: Callable[[], Any]) -> Any:
        """The result; its time is noted."""
        begun = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds[what] += time.perf_counter() - begun


def microseconds(call: Callable[[], Any], device: torch.device, graphs: bool) -> float:
    """Of a call: of the device in CUDA graphs, else of device or host, whichever is behind.

    On a CPU, which others use as well, the fastest of a few calls.
    """
    name = str(device)
    first = benchmark_kernel(call, warmup=1, iters=3, device=name)
    iters = max(5, min(50, int(30 / max(first.median_ms, 1e-3))))
    timing = benchmark_kernel(call, warmup=0, iters=iters, device=name)
    if device.type == "cpu":
        return 1e3 * min(first.low_ms, timing.low_ms)
    return 1e3 * (timing.median_ms if graphs else max(timing.median_ms, timing.host_ms))
