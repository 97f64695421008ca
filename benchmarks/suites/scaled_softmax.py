"""scaled_softmax against eager PyTorch, on scores of attention and on logits."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import fused_dtypes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes
from gossamer.ops import BACKENDS
from gossamer.ops.scaled_softmax import CUDA_MAX_WIDTH

# A power of two, as for heads of 64: eager PyTorch rounds x * scale, which otherwise costs digits.
SCALE = 0.125


def _eager(x: Tensor, scale: float) -> Tensor:
    return torch.softmax(x * scale, dim=-1)


def _case(shape: tuple[int, ...], device: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, float]:
        return 8 * torch.randn(shape, dtype=dtype, device=device), SCALE

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("scaled_softmax", _eager, device),
        bytes=lambda x, scale: 2 * tensor_bytes(x),
        flops=12 * torch.Size(shape).numel(),
        dtypes=fused_dtypes(device, shape),
        backends=BACKENDS if shape[-1] <= CUDA_MAX_WIDTH else ("cpu", "triton"),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    if quick:
        yield _case((64, 1024), device)
        return
    # Scores of 32 heads, from one query to a prompt; then logits of Llama-3
    shapes: list[tuple[int, ...]] = [(32, 1, 4096), (32, 128, 1024)]
    if device == "cpu":
        shapes += [(4, 32_000)]
    else:
        shapes += [(32, 1024, 4096), (8192, 16_384), (32, 128_256)]
    for shape in shapes:
        yield _case(shape, device)


SUITE = Suite("scaled_softmax", _cases)

if __name__ == "__main__":
    main(SUITE)
