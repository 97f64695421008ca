"""What the benchmarks of GEMMs share: sizes, turns at the power limit, operands of 8 bits."""

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.bench.suite import Case, PeerUnavailableError, tensor_bytes
from gossamer.ops.linear_fp8 import expand_scale

# [k, hidden] of the MLPs of SmolLM2-135M and Llama-3.2-1B, for a CPU, and of Llama-3-8B
SMOLLM2, LLAMA_1B, LLAMA_8B = (576, 1536), (2048, 8192), (4096, 14_336)

# Of GEMMs in a chain: errors of what is rounded between them go with the size of all terms.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1.2e-3, torch.bfloat16: 8e-3}
# Eager's operands are rounded to bfloat16. In float16, codes of 8 bits and their sums lose nothing.
TOLERANCE_8BIT = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
# Few rows on a CPU with VNNI: x has 16 bits of the largest of 32, 2e-5 of the size of a result.
TOLERANCE_16BIT = {torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 8e-3}

Args8bit = tuple[Tensor, Tensor, Tensor, Tensor, None, torch.dtype]
Quantize = Callable[[Tensor], tuple[Tensor, Tensor]]


def matrix(rows: int, columns: int, dtype: torch.dtype, device: str) -> Tensor:
    """Weights [rows, columns] that keep the variance of what they are multiplied with."""
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
    calls: dict[str, Callable[[], object]], seconds: float = 0.2, rounds: int = 5
) -> dict[str, list[float]]:
    """Mean milliseconds of each call in each round, in which every call has a turn of `seconds`.

    From 4096^3 on an H200 is at its power limit (700 W; 1.2 to 1.6 GHz instead of 1.98), where one
    and the same GEMM differs by 20% minutes later, so calls that are compared take turns. Every
    second round is in reversed order, so that none always follows the hotter one. The first half
    of a turn is left out: the clock follows what the last tenth of a second drew.

    In turns of 0.2 s each call therefore runs at the clock that its own power allows. In turns of
    10 ms all have the same clock, cycles alone count, and who draws more slows the others down. A
    kernel with tiles of 128 x 128 at 8192^3 was 1.04 times as fast as cuBLAS's in short turns, and
    0.91 times in long ones.
    """
    half = {name: math.ceil(seconds / 2 * 1e3 / _elapsed(call, 3)) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in reversed(calls) if turn % 2 else calls:
            for _ in range(half[name]):
                calls[name]()
            times[name].append(_elapsed(calls[name], half[name]))
    return times


def _elapsed(call: Callable[[], object], repeats: int) -> float:
    """Mean milliseconds on the GPU, of calls that follow each other at once."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / repeats


def ratios(times: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """How many times as fast a call is as another one: lowest, median and highest of the rounds."""
    found = [other / own for own, other in zip(times, others, strict=True)]
    return min(found), median(found), max(found)


def _wide(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.double() * expand_scale(scale.double(), codes)


def oracle_8bit(
    x: Tensor, xs: Tensor, weight: Tensor, ws: Tensor, _: None, dtype: torch.dtype
) -> Tensor:
    """linear_int8 and linear_fp8 in float64."""
    return _wide(x, xs) @ _wide(weight, ws).T


def _eager(
    x: Tensor, xs: Tensor, weight: Tensor, ws: Tensor, _: None, dtype: torch.dtype
) -> Callable[[], Tensor]:
    """In bfloat16 on a GPU, in the result's dtype on a CPU."""
    operands = dtype if x.is_cpu else torch.bfloat16
    a, b = _wide(x, xs).to(operands), _wide(weight, ws).to(operands)
    return lambda: F.linear(a, b)


def supported(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A peer's call, if it works here."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        raise PeerUnavailableError(str(error).split("\n")[0]) from None
    return call


def case_8bit(
    shape: tuple[int, int, int],
    of_x: Quantize,
    of_weight: Quantize,
    variant: str,
    peers: dict[str, Callable[..., Callable[[], Tensor]]],
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,),
) -> Case:
    """x [rows, k] times weight [n, k], quantized before the call."""
    rows, n, k = shape

    def make_args(dtype: torch.dtype, device: str) -> Args8bit:
        x, weight = (torch.randn(m, k, dtype=dtype, device=device) for m in (rows, n))
        return *of_x(x), *of_weight(weight), None, dtype

    return Case(
        shape=shape,
        make_args=make_args,
        peers={},
        adapted={"eager": _eager} | peers,
        bytes=lambda *args: tensor_bytes(*args[:4]) + args[-1].itemsize * rows * n,
        flops=2 * rows * n * k,
        variant=variant,
        dtypes=dtypes,
    )
