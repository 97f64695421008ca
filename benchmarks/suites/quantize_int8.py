"""quantize_int8 against eager PyTorch, on hidden states."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gossamer.bench.suite import Case, Suite, main, tensor_bytes


def _eager(x: Tensor) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax(-1, keepdim=True).float()
    scale = largest / torch.full_like(largest, 127)  # by a number, a GPU would multiply instead
    return (x * (1 / scale)).round().to(torch.int8), scale


def _case(rows: int, k: int) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor]:
        return (torch.randn(rows, k, dtype=dtype, device=device),)

    return Case(
        shape=(rows, k),
        make_args=make_args,
        peers={"eager": _eager},
        bytes=lambda x: tensor_bytes(x) + x.numel() + 4 * rows,
        flops=4 * rows * k,
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    shapes = [(16, 4096), (2048, 4096), (16_384, 8192)]
    for rows, k in [(32, 1024)] if quick else shapes[:2] if device == "cpu" else shapes:
        yield _case(rows, k)


# The same bits from all, which the reference defines in float32.
SUITE = Suite("quantize_int8", _cases, exact=True)

if __name__ == "__main__":
    main(SUITE)
