"""The gate of a GEGLU MLP (Gemma) in one pass over memory, after the fused gate and up GEMM."""

from typing import Literal

import torch
from torch import Tensor

from gossamer.ops.activations import gelu, gelu_tanh
from gossamer.ops.checks import check_has_last_dim, check_tensor
from gossamer.ops.registry import Op


def gelu_mul(
    x: Tensor, approximate: Literal["none", "tanh"] = "none", *, backend: str | None = None
) -> Tensor:
    """gelu(x[..., :n]) * x[..., n:] for x [..., 2n], computed in float32 and rounded once.

    x: float32, float16 or bfloat16, any strides; an even last dimension.
    approximate: "none" for x * Phi(x), "tanh" for its tanh approximation.
    Returns a contiguous tensor [..., n] of x's dtype. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, approximate).

        y = F.linear(gelu_mul(F.linear(x, gate_up), "tanh"), down)
    """
    result: Tensor = _op(x, approximate, backend=backend)
    return result


def _reference(x: Tensor, approximate: str = "none") -> Tensor:
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    activated = gelu(gate) if approximate == "none" else gelu_tanh(gate)
    return (activated * up).to(x.dtype).contiguous()


def _check(x: Tensor, approximate: str = "none") -> None:
    op = "gelu_mul"
    check_tensor(op, "x", x)
    check_has_last_dim(op, "x", x)
    if x.shape[-1] % 2 != 0:
        raise ValueError(f"{op}: the last dimension of x is {x.shape[-1]}; must be even")
    if approximate not in ("none", "tanh"):
        raise ValueError(f"{op}: approximate is {approximate!r}; must be 'none' or 'tanh'")


def _fake(x: Tensor, approximate: str = "none") -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


_op = Op(
    "gelu_mul",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 80), "none"),
    triton="gossamer.kernels.gelu_mul:gelu_mul",
)
