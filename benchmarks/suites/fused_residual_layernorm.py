"""fused_residual_layernorm against eager PyTorch: additions, then torch's own LayerNorm."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import fused_dtypes, pilot_shapes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes


def _eager(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    input_bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    h = x + residual if input_bias is None else x + input_bias + residual
    return F.layer_norm(h, weight.shape, weight, bias, eps), h


def _case(shape: tuple[int, ...], has_input_bias: bool, device: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor | float | None, ...]:
        x, residual = (torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
        weight, bias, input_bias = torch.randn(3, shape[-1], dtype=dtype, device=device)
        return x, residual, weight, bias, 1e-5, input_bias if has_input_bias else None

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("fused_residual_layernorm", _eager, device),
        bytes=lambda x, *_: 4 * tensor_bytes(x) + 3 * shape[-1] * x.element_size(),
        flops=9 * torch.Size(shape).numel(),
        variant="input_bias" if has_input_bias else "",
        dtypes=fused_dtypes(device, shape),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    shapes = pilot_shapes(device, quick)
    for shape in shapes:
        yield _case(shape, False, device)
    for shape in shapes[:1] if quick else shapes[1:3]:
        yield _case(shape, True, device)


SUITE = Suite("fused_residual_layernorm", _cases)

if __name__ == "__main__":
    main(SUITE)
