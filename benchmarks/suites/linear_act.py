"""linear_act against eager PyTorch, and next to cuBLAS's GEMM alone (no bias, no activation).

The facts of large squares are of both by turns. `of_product` says how many times as fast as the
GEMM linear_act is in turns of 0.2 s, each at the clock its power allows (the median of the
rounds, with `of_product_low` and `of_product_high`); `at_one_clock` in turns of 10 ms. `product_ms`
and `beside_ms` are the median times in long turns.
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.suites.gemm_cases import (
    LLAMA_1B,
    LLAMA_8B,
    SMOLLM2,
    TOLERANCE,
    by_turns,
    heat,
    matrix,
    ratios,
)
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops import linear_act

EAGER: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "relu2": lambda x: F.relu(x).square(),
    "relu": F.relu,
}


def _case(rows: int, n: int, k: int, activation: str, **options: object) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, str]:
        x = torch.randn(rows, k, dtype=dtype, device=device)
        bias = torch.randn(n, dtype=dtype, device=device)
        return x, matrix(n, k, dtype, device), bias, activation

    def eager(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        return EAGER[activation](F.linear(x, weight, bias))

    return Case(
        shape=(rows, n, k),
        make_args=make_args,
        peers={"eager": eager},
        bytes=lambda x, weight, bias, _: (
            tensor_bytes(x, weight, bias) + rows * n * x.element_size()
        ),
        flops=2 * rows * n * k,
        variant=activation,
        **options,  # type: ignore[arg-type]
    )


def _next_to_gemm(size: int) -> dict[str, dict[str, float]]:
    """Facts of each activation at a size, by turns with the GEMM alone."""
    x, weight = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    bias = x[0].contiguous()
    calls: dict[str, Callable[[], object]] = {
        name: partial(linear_act, x, weight, bias, name, backend="cuda") for name in EAGER
    }
    calls["product"] = partial(F.linear, x, weight)
    own, short = by_turns(calls), by_turns(calls, seconds=0.01, rounds=12)
    return {name: _facts(name, own, short) for name in EAGER}


def _facts(
    name: str, own: dict[str, list[float]], short: dict[str, list[float]]
) -> dict[str, float]:
    low, middle, high = ratios(own[name], own["product"])
    return {
        "product_ms": median(own["product"]),
        "beside_ms": median(own[name]),
        "of_product": middle,
        "of_product_low": low,
        "of_product_high": high,
        "at_one_clock": ratios(short[name], short["product"])[1],
    }


def _squares(size: int) -> Iterator[Case]:
    """The CUDA kernel at a size where it is the best one."""
    heat()
    for name, facts in _next_to_gemm(size).items():
        options = {"facts": facts, "dtypes": (torch.bfloat16,), "backends": ("cuda",)}
        yield _case(size, size, size, name, **options)


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case(4, 960, 576, "gelu")
        return
    if device == "cpu":
        for k, n in (SMOLLM2, LLAMA_1B):
            for rows in (1, 8, 128):
                yield _case(rows, n, k, "gelu")
        return
    k, n = LLAMA_8B
    for rows in (1, 16, 64, 128, 256, 2048):
        yield _case(rows, n, k, "gelu", dtypes=(torch.bfloat16,))
    for size in (4096, 8192, 16_384):
        yield from _squares(size)


SUITE = Suite("linear_act", _cases, tolerance=TOLERANCE, best="cpu")

if __name__ == "__main__":
    main(SUITE)
