"""What the benchmarks of matrix products share."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor

from gossamer.bench.timing import benchmark_kernel

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


def by_turns(calls: Mapping[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """Median milliseconds of each call, taken by turns.

    A GPU at its power limit slows down by 10% in seconds: whoever came later would pay for it.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            timing = benchmark_kernel(call, warmup=1, iters=5, device="cuda")
            times[name].append(timing.median_ms)
    return {name: median(taken) for name, taken in times.items()}
