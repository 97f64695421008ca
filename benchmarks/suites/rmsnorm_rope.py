"""rmsnorm_rope against eager PyTorch: RMSNorm and rotary embedding as transformers has them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.peers.compiled import compiled
from benchmarks.suites import rope
from benchmarks.suites.rmsnorm import written_out
from benchmarks.suites.shapes import fused_dtypes
from gossamer.bench.measure import MAX_RELATIVE_ERROR
from gossamer.bench.suite import Case, Suite, main

# Eager PyTorch rounds the norm, cos, sin, both products and their sum.
TOLERANCE = {dtype: 2 * error for dtype, error in MAX_RELATIVE_ERROR.items()}


def _eager(
    x: Tensor,
    weight: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    interleaved: bool,
) -> Tensor:
    return rope.eager(written_out(x, weight, eps), positions, cos, sin, interleaved)


def _case(shape: tuple[int, int, int], value_heads: int, device: str) -> Case:
    tokens, heads, head_dim = shape

    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor | float | bool, ...]:
        qkv = torch.randn(tokens, heads + value_heads, head_dim, dtype=dtype, device=device)
        weight = torch.randn(heads, head_dim, dtype=dtype, device=device)
        return qkv[:, :heads], weight, *rope.tables(tokens, head_dim, device), 1e-6, False

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("rmsnorm_rope", _eager, device),
        bytes=lambda x, *_: rope.traffic(x),
        flops=7 * torch.Size(shape).numel(),
        dtypes=fused_dtypes(device, shape),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for shape in rope.llama_shapes(device, quick):
        yield _case(shape, 8, device)


SUITE = Suite("rmsnorm_rope", _cases, tolerance=TOLERANCE)

if __name__ == "__main__":
    main(SUITE)
