"""How much memory a call takes at its peak."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.ops.registry import flat
from gossamer.profiling import Recorder


def peak_beyond(call: Callable[[], Any], device: str) -> int:
    """Bytes that torch allocates for a call at its peak, without those of its results.

    On a CPU from torch's profiler, which sees its allocator and not `malloc`; on a GPU from the
    caching allocator. Arguments exist already and do not count.
    """
    call()  # whatever is set up by a first call
    peak, results = (_cuda if device == "cuda" else _cpu)(call)
    return max(peak - sum(t.numel() * t.element_size() for t in results), 0)


def _cuda(call: Callable[[], Any]) -> tuple[int, tuple[Tensor, ...]]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, flat(result)


def _cpu(call: Callable[[], Any]) -> tuple[int, tuple[Tensor, ...]]:
    recorder = Recorder()
    recorder.start()
    result = call()
    taken = peak = 0
    for change in recorder.stop().allocations:
        taken += change
        peak = max(peak, taken)
    return peak, flat(result)
