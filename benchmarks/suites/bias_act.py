"""bias_act against eager PyTorch."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.compiled import compiled
from benchmarks.suites.shapes import fused_dtypes, pilot_shapes
from gossamer.bench.suite import Case, Suite, main, tensor_bytes

FLOPS_PER_ELEMENT = 20  # an exponential, a reciprocal and some more


def _eager(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    y = x + bias
    if activation == "gelu":
        return F.gelu(y)
    if activation == "gelu_tanh":
        return F.gelu(y, approximate="tanh")
    if activation == "silu":
        return F.silu(y)
    if activation == "mish":
        return F.mish(y)
    return torch.relu(y).square()


def _case(shape: tuple[int, ...], activation: str, device: str) -> Case:
    def make_args(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, str]:
        x = torch.randn(shape, dtype=dtype, device=device)
        return x, torch.randn(shape[-1], dtype=dtype, device=device), activation

    return Case(
        shape=shape,
        make_args=make_args,
        peers={"eager": _eager},
        adapted=compiled("bias_act", _eager, device),
        bytes=lambda x, bias, activation: 2 * tensor_bytes(x) + tensor_bytes(bias),
        flops=FLOPS_PER_ELEMENT * torch.Size(shape).numel(),
        variant=activation,
        dtypes=fused_dtypes(device, shape),
    )


def _cases(device: str, quick: bool) -> Iterator[Case]:
    shapes = pilot_shapes(device, quick)
    for shape in shapes:
        for activation in ("gelu", "silu"):
            yield _case(shape, activation, device)
    for activation in () if quick else ("gelu_tanh", "mish", "relu2"):
        yield _case(shapes[-2], activation, device)


SUITE = Suite("bias_act", _cases)

if __name__ == "__main__":
    main(SUITE)
