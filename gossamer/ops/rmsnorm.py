"""RMSNorm: what stands before the first block of a decoder and after the last."""

import torch
from torch import Tensor

from gossamer.ops.norm_checks import check_norm
from gossamer.ops.registry import Op


def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-6, *, backend: str | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, rounded once.

    Mean, scaling and the product with weight are in float32; some models (transformers'
    LlamaRMSNorm) round once more before that product: a unit in the last place.
    x: [..., n] with n from 1 to 65,536, float32, float16 or bfloat16, any strides. weight: [n], of
    the same dtype and device. eps: >= 0.
    Returns a contiguous tensor of x's shape and dtype. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, width, device, eps).

        logits = F.linear(rmsnorm(x, norm.weight, 1e-5), head)

    With an addition before it, see `fused_residual_rmsnorm`.
    """
    result: Tensor = _op(x, weight, eps, backend=backend)
    return result


def _reference(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    h = x.to(wide)
    scale = torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + eps)
    return (h * scale * weight.to(wide)).to(x.dtype).contiguous()


def _check(x: Tensor, weight: Tensor, eps: float = 1e-6) -> None:
    check_norm("rmsnorm", x, None, {"weight": weight}, eps, has_residual=False)


def _fake(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x.new_empty(x.shape)


_op = Op(
    "rmsnorm",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(40), 1e-6),
    triton="gossamer.kernels.rmsnorm:rmsnorm",
)
