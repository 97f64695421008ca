"""What the benchmarks of linear_int8 and linear_fp8 share.

Eager PyTorch multiplies in bfloat16 on a GPU, in the result's dtype on a CPU.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.bench.suite import Case, PeerUnavailableError, tensor_bytes
from gossamer.ops.linear_fp8 import expand_scale

Args = tuple[Tensor, Tensor, Tensor, Tensor, None, torch.dtype]
Quantize = Callable[[Tensor], tuple[Tensor, Tensor]]
# Eager's operands are rounded to bfloat16. In float16, codes of 8 bits and their sums lose nothing.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def _wide(codes: Tensor, scale: Tensor) -> Tensor:
    return codes.double() * expand_scale(scale.double(), codes)


def oracle(
    x: Tensor, xs: Tensor, weight: Tensor, ws: Tensor, _: None, dtype: torch.dtype
) -> Tensor:
    """The product in float64."""
    return _wide(x, xs) @ _wide(weight, ws).T


def _eager(
    x: Tensor, xs: Tensor, weight: Tensor, ws: Tensor, _: None, dtype: torch.dtype
) -> Callable[[], Tensor]:
    operands = dtype if x.is_cpu else torch.bfloat16
    a, b = _wide(x, xs).to(operands), _wide(weight, ws).to(operands)
    return lambda: F.linear(a, b)


def supported(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A peer's call, if it works here."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        raise PeerUnavailableError(str(error).split("\n")[0]) from None
    return call


def case(
    shape: tuple[int, int, int],
    of_x: Quantize,
    of_weight: Quantize,
    variant: str,
    peers: dict[str, Callable[..., Callable[[], Tensor]]],
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,),
) -> Case:
    """x [rows, k] times weight [n, k], quantized before the call."""
    rows, n, k = shape

    def make_args(dtype: torch.dtype, device: str) -> Args:
        x, weight = (torch.randn(m, k, dtype=dtype, device=device) for m in (rows, n))
        return *of_x(x), *of_weight(weight), None, dtype

    return Case(
        shape=shape,
        make_args=make_args,
        peers={},
        adapted={"eager": _eager} | peers,
        bytes=lambda *args: tensor_bytes(*args[:4]) + args[-1].itemsize * rows * n,
        flops=2 * rows * n * k,
        variant=variant,
        dtypes=dtypes,
    )
