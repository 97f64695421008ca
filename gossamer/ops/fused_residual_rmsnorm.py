"""Residual addition and RMSNorm in one pass: what stands between two blocks of a decoder."""

import torch
from torch import Tensor

from gossamer.ops.norm_checks import check_norm
from gossamer.ops.registry import Op


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
    rows = {"weight": weight}
    check_norm("fused_residual_rmsnorm", x, residual, rows, eps, has_residual=True)


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
