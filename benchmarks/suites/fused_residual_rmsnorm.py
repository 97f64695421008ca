"""fused_residual_rmsnorm against eager PyTorch: an addition, then torch's own RMSNorm."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import pilot_dtypes, pilot_shapes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes


def _eager(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    h = x + residual
    return F.rms_norm(h, weight.shape, weight, eps), h


def _case(shape: tuple[int, ...], device: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, float]:
        x, residual = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
        return x, residual, torch.randn(shape[-1], dtype=dtype, device=device), 1e-6

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("fused_residual_rmsnorm", _eager, device),
        bytes=lambda x, residual, weight, eps: 4 * tensor_bytes(x) + tensor_bytes(weight),
        flops=5 * torch.Size(shape).numel(),
        dtypes=pilot_dtypes(device, shape),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for shape in pilot_shapes(device, quick):
        yield _case(shape, device)
    if device == "cuda" and not quick:  # narrow, odd and very wide rows
        for shape in [
            (262_144, 128),
            (65_536, 1000),
            (16_384, 4097),
            (2048, 16_384),
            (1024, 65_536),
        ]:
            yield _case(shape, device)


SUITE = Suite("fused_residual_rmsnorm", _cases)

if __name__ == "__main__":
    main(SUITE)
