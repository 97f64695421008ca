"""rope_inplace against eager PyTorch that writes its result back."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.peers.compiled import compiled
from benchmarks.suites import rope
from benchmarks.suites.shapes import fused_dtypes
from gossamer.bench.suite import Case, Suite, main


def _eager(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    x.copy_(rope.eager(x, positions, cos, sin, interleaved))


def _case(shape: tuple[int, int, int], value_heads: int, device: str) -> Case:
    tokens, heads, head_dim = shape

    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
        qkv = torch.randn(tokens, heads + value_heads, head_dim, dtype=dtype, device=device)
        # Turned by nothing: calls are repeated, and what they leave behind is compared with one.
        # That they turn is for the tests to show.
        cos = torch.ones(max(tokens, 4096), head_dim // 2, device=device)
        positions = torch.arange(cos.shape[0] - tokens, cos.shape[0], device=device)
        return qkv[:, :heads], positions, cos, torch.zeros_like(cos), False

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("rope_inplace", _eager, device),
        bytes=lambda x, *_: rope.traffic(x),
        flops=3 * torch.Size(shape).numel(),
        dtypes=fused_dtypes(device, shape),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for shape in rope.llama_shapes(device, quick):
        yield _case(shape, 8, device)


SUITE = Suite("rope_inplace", _cases, exact=True)

if __name__ == "__main__":
    main(SUITE)
