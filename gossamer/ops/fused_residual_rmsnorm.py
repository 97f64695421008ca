"""Residual addition and RMSNorm in one pass: what stands between two blocks of a decoder."""

import sys

import torch
from torch import Tensor

from gossamer.ops.checks import check_has_last_dim, check_like, check_shape, check_tensor
from gossamer.ops.registry import Op

MAX_WIDTH = 65_536


def fused_residual_rmsnorm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(RMSNorm(x + residual) * weight, x + residual).

    The sum is rounded to the dtype first and then normed, so the first result is the norm of the
    second. Mean, scaling and the product with weight are in float32 and rounded once; some models
    (transformers' LlamaRMSNorm) round once more before that product: a unit in the last place.
    x, residual: [..., n] with n from 1 to 65,536, float32, float16 or bfloat16, any strides.
    weight: [n]. eps: >= 0. One dtype and device. Returns contiguous tensors. Inference only.
    Raises TypeError (dtype) or ValueError (shape, width, device, eps).
    """
    result: tuple[Tensor, Tensor] = _op(x, residual, weight, eps, backend=backend)
    return result


def _reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    new_residual = (x.to(wide) + residual.to(wide)).to(x.dtype).contiguous()
    h = new_residual.to(wide)
    scale = torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + eps)
    return (h * scale * weight.to(wide)).to(x.dtype), new_residual


def _check(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
    op = "fused_residual_rmsnorm"
    check_tensor(op, "x", x)
    check_like(op, "residual", residual, "x", x)
    check_like(op, "weight", weight, "x", x)
    check_has_last_dim(op, "x", x)
    width = x.shape[-1]
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"{op}: the last dimension of x is {width}; must be 1 to {MAX_WIDTH}")
    check_shape(op, "residual", residual, tuple(x.shape), "the shape of x")
    check_shape(op, "weight", weight, (width,), "the last dimension of x")
    if not isinstance(eps, (int, float)):
        raise TypeError(f"{op}: eps is {type(eps).__name__}; must be a float")
    if not 0 <= eps <= sys.float_info.max:
        raise ValueError(f"{op}: eps is {eps}; must be finite and >= 0")


def _fake(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


_op = Op(
    "fused_residual_rmsnorm",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(3, 40), make(40), 1e-6),
    triton="gossamer.kernels.fused_residual_rmsnorm:fused_residual_rmsnorm",
)
