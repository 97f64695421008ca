"""How long a call takes: CUDA events with a cold L2 on a GPU, wall clock on a CPU."""

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>
COPY_BYTES = {"cuda": 2 << 30, "cpu": 512 << 20}  # far beyond any cache
CYCLES_PER_MS = 2_000_000  # of a GPU at 2 GHz; no GPU of this decade is much faster


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: median, 10th and 90th percentile over `iterations` calls.

    On a GPU these are times of the device alone; `host_ms` is what the host needs to issue a call,
    which is what counts for small calls outside a CUDA graph.
    """

    median_ms: float
    low_ms: float
    high_ms: float
    host_ms: float
    iterations: int


def benchmark_kernel(
    fn: Callable[..., Any],
    *args: Any,
    warmup: int = 20,
    iters: int = 100,
    device: str | None = None,
) -> Timing:
    """Time `fn(*args)`: on the GPU when an argument lives there, else on the CPU.

    A closure over GPU tensors needs `device="cuda"`, or its launch would be timed and not its work.
    Raises ValueError for warmup < 0, iters < 1, or no device to be seen while CUDA is in use.
    """
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if device is None and not tensors and torch.cuda.is_initialized():
        raise ValueError("no tensor among the arguments; say device='cpu' or device='cuda'")
    where = torch.device(device) if device is not None else device_of(args)
    return time_calls(lambda _: fn(*args), device=where, warmup=warmup, iters=iters)


def time_calls(
    call: Callable[[int], Any], *, device: torch.device, warmup: int = 20, iters: int = 100
) -> Timing:
    """Time `call(i)` for i = 0 .. iters-1, after `warmup` untimed calls."""
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}; must be >= 0")
    if iters < 1:
        raise ValueError(f"iters is {iters}; must be >= 1")
    if device.type == "cpu":
        _keep_freed_memory()
    for i in range(warmup):
        call(i % iters)
    if device.type == "cuda":
        samples, host_ms = _cuda_samples(call, device, iters)
    else:
        samples = _cpu_samples(call, iters)
        host_ms = float(np.median(samples))
    low, median, high = np.percentile(samples, [10, 50, 90])
    return Timing(float(median), float(low), float(high), host_ms, iters)


def device_of(args: Sequence[Any]) -> torch.device:
    """The GPU of the first tensor that has one, else the CPU."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.is_cuda:
            return arg.device
    return torch.device("cpu")


@functools.cache
def _keep_freed_memory() -> None:
    """Tell glibc to keep large blocks that are freed instead of returning them to the kernel.

    Otherwise a result of more than 32 MB is mapped anew in every call, and page faults take five
    times as long as the work that is to be timed.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def _cpu_samples(call: Callable[[int], Any], iters: int) -> list[float]:
    samples = []
    for i in range(iters):
        start = time.perf_counter()
        call(i)
        samples.append((time.perf_counter() - start) * 1e3)
    return samples


def _cuda_samples(
    call: Callable[[int], Any], device: torch.device, iters: int
) -> tuple[list[float], float]:
    """Device times of `iters` calls, each with a cold L2, and the host's time per call."""
    # Reading a buffer of four L2 sizes evicts everything else. Writing one instead (as is common)
    # leaves the L2 full of dirty lines, whose write-back the timed kernel would pay for.
    flush = torch.zeros(l2_bytes(device), dtype=torch.int32, device=device)
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(iters)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(iters)]
    with torch.cuda.device(device):
        host_ms = _host_time(call, iters)
        for i in range(iters):
            flush.max()
            # The GPU idles until the call is surely queued, or its launch would be timed as well.
            torch.cuda._sleep(int(2 * host_ms * CYCLES_PER_MS))
            starts[i].record()
            call(i)
            ends[i].record()
        torch.cuda.synchronize()
    return [s.elapsed_time(e) for s, e in zip(starts, ends, strict=True)], host_ms


def _host_time(call: Callable[[int], Any], iters: int) -> float:
    """Median milliseconds until `call` returns, with the GPU's queue empty."""
    samples = []
    for i in range(min(iters, 10)):
        torch.cuda.synchronize()
        samples += _cpu_samples(lambda _, i=i: call(i), 1)  # type: ignore[misc]
    return float(np.median(samples))


def l2_bytes(device: torch.device) -> int:
    """Size of the GPU's L2 cache."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


@functools.cache
def copy_bandwidth(device: str) -> float:
    """GB/s of a large copy by torch, bytes read plus bytes written: the ceiling of a device.

    Measured once per process.
    """
    size = COPY_BYTES["cuda" if device.startswith("cuda") else "cpu"]
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    iters = 50 if source.is_cuda else 10
    timing = benchmark_kernel(target.copy_, source, warmup=3, iters=iters)
    return 2 * size / timing.median_ms / 1e6
