"""What the benchmarks of matrix products share."""

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

# [k, hidden] of the MLPs of SmolLM2-135M and Llama-3.2-1B, for a CPU, and of Llama-3-8B
SMOLLM2, LLAMA_1B, LLAMA_8B = (576, 1536), (2048, 8192), (4096, 14_336)

# Products of products: errors of what is rounded between them go with the size of all terms.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1.2e-3, torch.bfloat16: 8e-3}


def matrix(rows: int, columns: int, dtype: torch.dtype, device: str) -> Tensor:
    """Weights whose products with numbers of the size of 1 are of that size."""
    return torch.randn(rows, columns, dtype=dtype, device=device).div(columns**0.5)


def heat(seconds: float = 2.0) -> None:
    """Keep the GPU busy: a cold one multiplies 10% faster for some seconds.

    Those who are measured first, which are the peers, would have that for themselves.
    """
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


def by_turns(
    calls: dict[str, Callable[[], object]], seconds: float = 0.3, rounds: int = 5
) -> dict[str, list[float]]:
    """Mean milliseconds of each call in each round. In a round every call has a turn.

    At 4096^3 and above an H200 is at its power limit (700 W, 1.25 to 1.6 GHz instead of 1.98), and
    its clock follows what the last tenth of a second drew. So calls that are compared take turns,
    for minutes apart one and the same product differs by 20%; every second round is in reversed
    order, so that neither always comes after the hotter one; and a turn repeats one call for
    `seconds`, of which the first half is left out, so that each runs at the clock that its own
    power allows. In turns of some milliseconds all would have one clock, and who draws more would
    slow the others down: a kernel of ours was 1.03 times as fast as cuBLAS's then, and 0.95 times
    by itself.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in reversed(calls) if turn % 2 else calls:
            times[name].append(_turn(calls[name], seconds))
    return times


def _turn(call: Callable[[], object], seconds: float) -> float:
    call()
    repeats = max(2, math.ceil(seconds / 2 / (_elapsed(call, 2) / 1e3)))
    for _ in range(repeats):
        call()
    return _elapsed(call, repeats)


def _elapsed(call: Callable[[], object], repeats: int) -> float:
    """Mean milliseconds on the GPU, of calls that follow each other at once."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats


def beside(times: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """How many times as fast a call is as another one by its side: median, lowest and highest."""
    ratios = [other / own for own, other in zip(times, others, strict=True)]
    return {"median": median(ratios), "low": min(ratios), "high": max(ratios)}
