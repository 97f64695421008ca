"""What the memory of this machine can do: the ceiling that GB/s are compared with."""

import functools

import torch

from gossamer.bench.timing import benchmark_kernel

COPY_BYTES = {"cuda": 2 << 30, "cpu": 512 << 20}  # far beyond any cache


@functools.cache
def copy_bandwidth(device: str) -> float:
    """GB/s of a large copy by torch, bytes read plus bytes written, measured once per process."""
    size = COPY_BYTES["cuda" if device.startswith("cuda") else "cpu"]
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    iters = 50 if source.is_cuda else 10
    timing = benchmark_kernel(target.copy_, source, warmup=3, iters=iters)
    return 2 * size / timing.median_ms / 1e6
