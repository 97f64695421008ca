"""fused_add_gelu against eager PyTorch."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import pilot_dtypes, pilot_shapes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes

FLOPS_PER_ELEMENT = 20  # polynomial, exponential and reciprocal


def _eager(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    return F.gelu(x + bias, approximate=approximate)


def _case(shape: tuple[int, ...], approximate: str, device: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, str]:
        x = torch.randn(shape, dtype=dtype, device=device)
        return x, torch.randn(shape[-1], dtype=dtype, device=device), approximate

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("fused_add_gelu", _eager, device),
        bytes=lambda x, bias, approximate: 2 * tensor_bytes(x) + tensor_bytes(bias),
        flops=FLOPS_PER_ELEMENT * torch.Size(shape).numel(),
        dtypes=pilot_dtypes(device, shape),
        variant=f"approximate={approximate}",
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for shape in pilot_shapes(device, quick):
        for approximate in ("none", "tanh"):
            yield _case(shape, approximate, device)


SUITE = Suite("fused_add_gelu", _cases)

if __name__ == "__main__":
    main(SUITE)
