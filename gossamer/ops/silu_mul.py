"""The gate of an MLP in one pass over memory: what follows the fused gate and up GEMM."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.ops.checks import check_has_last_dim, check_tensor
from gossamer.ops.registry import Op


def silu_mul(x: Tensor, *, backend: str | None = None) -> Tensor:
    """silu(x[..., :n]) * x[..., n:] for x [..., 2n], computed in float32 and rounded once.

    x: float32, float16 or bfloat16, any strides; an even last dimension.
    Returns a contiguous tensor [..., n] of x's dtype. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape).
    """
    result: Tensor = _op(x, backend=backend)
    return result


def _reference(x: Tensor) -> Tensor:
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype).contiguous()


def _check(x: Tensor) -> None:
    op = "silu_mul"
    check_tensor(op, "x", x)
    check_has_last_dim(op, "x", x)
    if x.shape[-1] % 2 != 0:
        raise ValueError(f"{op}: the last dimension of x is {x.shape[-1]}; must be even")


def _fake(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


_op = Op(
    "silu_mul",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 80),),
    triton="gossamer.kernels.silu_mul:silu_mul",
)
