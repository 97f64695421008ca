"""rmsnorm against eager PyTorch: as transformers' models write it, and torch's own fused one."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import fused_dtypes, pilot_shapes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes


def written_out(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm as models have it."""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def _fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _case(shape: tuple[int, ...], device: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, float]:
        x = torch.randn(shape, dtype=dtype, device=device)
        return x, torch.randn(shape[-1], dtype=dtype, device=device), 1e-6

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": written_out, "rms_norm": _fused},
        adapted=compiled("rmsnorm", written_out, device),
        bytes=lambda x, weight, eps: 2 * tensor_bytes(x) + tensor_bytes(weight),
        flops=4 * torch.Size(shape).numel(),
        dtypes=fused_dtypes(device, shape),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    for shape in pilot_shapes(device, quick):
        yield _case(shape, device)
    if device == "cuda" and not quick:  # narrow rows
        yield _case((262_144, 128), device)


SUITE = Suite("rmsnorm", _cases)

if __name__ == "__main__":
    main(SUITE)
