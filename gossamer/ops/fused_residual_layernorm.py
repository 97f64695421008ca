"""Residual addition and LayerNorm in one pass, with the bias of the layer before it."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import FusedResidualLayernormArguments, named
from gossamer.ops.norm_checks import check_norm, given
from gossamer.ops.registry import Op


def fused_residual_layernorm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    input_bias: Tensor | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(LayerNorm(s) * weight + bias, s) with s = x + input_bias + residual.

    s is added up in float32, rounded to the dtype and then normed, so the first result is the norm
    of the second. Mean, variance (of the distances from the mean), scaling and both products with
    weight and bias are in float32 and rounded once.
    x, residual: [..., n] with n from 1 to 65,536, float32, float16 or bfloat16, any strides.
    weight: [n]. bias: [n] or None for 0. input_bias: [n] or None for 0: the bias of the linear
    layer that made x. eps: >= 0. One dtype and device. Returns contiguous tensors. Inference only.
    Raises TypeError (dtype) or ValueError (shape, width, device, eps).

        h = F.linear(attended, out.weight)
        normed, stream = fused_residual_layernorm(h, stream, n.weight, n.bias, 1e-5, out.bias)
    """
    result: tuple[Tensor, Tensor] = _op(x, residual, weight, bias, eps, input_bias, backend=backend)
    return result


@named(FusedResidualLayernormArguments)
def _reference(a: FusedResidualLayernormArguments) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(a.x.dtype, torch.float32)
    h = a.x.to(wide) if a.input_bias is None else a.x.to(wide) + a.input_bias.to(wide)
    new_residual = (h + a.residual.to(wide)).to(a.x.dtype).contiguous()
    h = new_residual.to(wide)
    off = h - h.mean(dim=-1, keepdim=True)
    normed = off * torch.rsqrt(off.square().mean(dim=-1, keepdim=True) + a.eps) * a.weight.to(wide)
    if a.bias is not None:
        normed = normed + a.bias.to(wide)
    return normed.to(a.x.dtype), new_residual


@named(FusedResidualLayernormArguments)
def _check(a: FusedResidualLayernormArguments) -> None:
    rows = {"weight": a.weight} | given(bias=a.bias, input_bias=a.input_bias)
    check_norm("fused_residual_layernorm", a.x, a.residual, rows, a.eps, has_residual=True)


def _fake(x: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


_op = Op(
    "fused_residual_layernorm",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(3, 40), make(40), make(40), 1e-5, make(40)),
    # Triton's interpreter truncates the sum to bfloat16; next to the mean that is a large part.
    tolerance={torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2},
    triton="gossamer.kernels.fused_residual_layernorm:fused_residual_layernorm",
)
