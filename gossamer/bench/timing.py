"""How long a call takes: CUDA events with a cold L2 on a GPU, wall clock on a CPU."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, 10th and 90th percentile over `iterations` calls."""

    median_ms: float
    low_ms: float
    high_ms: float
    iterations: int

    @classmethod
    def of(cls, samples_ms: Sequence[float]) -> "Timing":
        low, median, high = np.percentile(samples_ms, [10, 50, 90])
        return cls(float(median), float(low), float(high), len(samples_ms))


def benchmark_kernel(fn: Callable[..., Any], *args: Any, warmup: int = 20, iters: int = 100) -> Timing:
    """Time `fn(*args)`: on the GPU when an argument lives there, else on the CPU.

    Raises ValueError for warmup < 0 or iters < 1.
    """
    return time_calls(lambda _: fn(*args), device=device_of(args), warmup=warmup, iters=iters)


def time_calls(
    call: Callable[[int], Any], *, device: torch.device, warmup: int = 20, iters: int = 100
) -> Timing:
    """Time `call(i)` for i = 0 .. iters-1, after `warmup` untimed calls."""
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}; must be >= 0")
    if iters < 1:
        raise ValueError(f"iters is {iters}; must be >= 1")
    for i in range(warmup):
        call(i % iters)
    timer = _cuda_samples if device.type == "cuda" else _cpu_samples
    return Timing.of(list(timer(call, device, iters)))


def device_of(args: Sequence[Any]) -> torch.device:
    """The GPU of the first tensor that has one, else the CPU."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.is_cuda:
            return arg.device
    return torch.device("cpu")


def _cpu_samples(call: Callable[[int], Any], device: torch.device, iters: int) -> Iterator[float]:
    for i in range(iters):
        start = time.perf_counter()
        call(i)
        yield (time.perf_counter() - start) * 1e3


def _cuda_samples(call: Callable[[int], Any], device: torch.device, iters: int) -> Iterator[float]:
    # Reading a buffer of four L2 sizes evicts everything else. Writing one instead (as is common)
    # leaves the L2 full of dirty lines, whose write-back the timed kernel would pay for. The read
    # also keeps the GPU busy while the host queues the call, so launch latency is not measured.
    flush = torch.empty(4 * l2_bytes(device) // 4, dtype=torch.int32, device=device).zero_()
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(iters)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(iters)]
    with torch.cuda.device(device):
        for i in range(iters):
            flush.max()
            starts[i].record()
            call(i)
            ends[i].record()
        torch.cuda.synchronize()
    for start, end in zip(starts, ends, strict=True):
        yield start.elapsed_time(end)


def l2_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
