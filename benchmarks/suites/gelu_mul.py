"""gelu_mul against eager PyTorch, on the output of a fused gate and up projection."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import fused_dtypes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes

FLOPS_PER_RESULT = 20  # polynomial, exponential and reciprocal


def _eager(x: Tensor, approximate: str) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate=approximate) * up


def _case(shape: tuple[int, int], approximate: str, device: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, str]:
        return torch.randn(shape, dtype=dtype, device=device), approximate

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("gelu_mul", _eager, device),
        bytes=lambda x, approximate: 3 * tensor_bytes(x) // 2,
        flops=FLOPS_PER_RESULT * torch.Size(shape).numel() // 2,
        variant=f"approximate={approximate}",
        dtypes=fused_dtypes(device, shape),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case((32, 3072), "tanh", device)
        return
    # The MLP of Gemma-2-9B, from a decode step to a long prompt
    for tokens in (1, 32, 512) if device == "cpu" else (1, 32, 2048, 16_384):
        yield _case((tokens, 28_672), "tanh", device)
    yield _case((32 if device == "cpu" else 2048, 28_672), "none", device)


SUITE = Suite("gelu_mul", _cases)

if __name__ == "__main__":
    main(SUITE)
