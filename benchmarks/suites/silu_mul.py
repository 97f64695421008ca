"""silu_mul against eager PyTorch, on the output of a fused gate and up projection."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import pilot_dtypes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes

FLOPS_PER_RESULT = 14  # exponential, reciprocal and two products


def _eager(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def _case(shape: tuple[int, int], device: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor]:
        return (torch.randn(shape, dtype=dtype, device=device),)

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("silu_mul", _eager, device),
        bytes=lambda x: 3 * tensor_bytes(x) // 2,
        flops=FLOPS_PER_RESULT * torch.Size(shape).numel() // 2,
        dtypes=pilot_dtypes(device, shape),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case((32, 3072), device)
        return
    if device == "cpu":  # SmolLM2-135M
        yield _case((1, 3072), device)
        yield _case((32, 3072), device)
    # Llama-3-8B, from a decode step to a long prompt
    for tokens in (1, 32, 512) if device == "cpu" else (1, 32, 2048, 16_384):
        yield _case((tokens, 28_672), device)


SUITE = Suite("silu_mul", _cases)

if __name__ == "__main__":
    main(SUITE)
