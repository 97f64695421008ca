"""The end of a decoder sublayer: product, bias, residual addition and the next layer's norm."""

import sys

import torch
from torch import Tensor

from gossamer.ops.checks import check_like, check_shape, one_of
from gossamer.ops.linear_checks import check_bias, check_input, check_weight
from gossamer.ops.registry import Op

NORMS = ("rms", "layer")
MAX_WIDTH = 65_536


def linear_norm(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    bias: Tensor | None = None,
    norm_bias: Tensor | None = None,
    norm: str = "rms",
    eps: float = 1e-6,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """(norm(s) * norm_weight + norm_bias, s) with s = x @ weight.T + bias + residual.

    x: [..., k]. weight: [n, k], rows of elements side by side. residual: [..., n]. norm_weight,
    bias, norm_bias: [n]. norm: "rms" or "layer" (mean 0 and variance 1). n from 1 to 65,536, k at
    least 1. eps: >= 0. One dtype (float32, float16 or bfloat16) and device; any strides but those
    of weight. s is rounded to the dtype before the norm, so the first result is the norm of the
    second. On a GPU, and for more than 16 rows on a CPU, the product is rounded before it is added,
    as in a model that calls one after the other.
    Returns contiguous tensors. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, norm, eps).
    """
    args = (x, weight, residual, norm_weight, bias, norm_bias, norm, eps)
    result: tuple[Tensor, Tensor] = _op(*args, backend=backend)
    return result


def _reference(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    bias: Tensor | None = None,
    norm_bias: Tensor | None = None,
    norm: str = "rms",
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    total = x.to(wide) @ weight.to(wide).T + residual.to(wide)
    if bias is not None:
        total = total + bias.to(wide)
    rounded = total.to(x.dtype).contiguous()
    h = rounded.to(wide)
    if norm == "layer":
        h = h - h.mean(dim=-1, keepdim=True)
    normed = h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + eps) * norm_weight.to(wide)
    if norm_bias is not None:
        normed = normed + norm_bias.to(wide)
    return normed.to(x.dtype).contiguous(), rounded


def _check(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    bias: Tensor | None = None,
    norm_bias: Tensor | None = None,
    norm: str = "rms",
    eps: float = 1e-6,
) -> None:
    op = "linear_norm"
    check_input(op, x)
    check_weight(op, "weight", weight, x)
    n = weight.shape[0]
    if not 1 <= n <= MAX_WIDTH:
        raise ValueError(f"{op}: weight has {n} rows; must have 1 to {MAX_WIDTH}")
    check_like(op, "residual", residual, "x", x)
    check_shape(op, "residual", residual, (*x.shape[:-1], n), "that of the product")
    check_like(op, "norm_weight", norm_weight, "x", x)
    check_shape(op, "norm_weight", norm_weight, (n,), "one for each row of weight")
    check_bias(op, "bias", bias, x, n, "weight")
    check_bias(op, "norm_bias", norm_bias, x, n, "weight")
    one_of(f"{op}: norm", norm, NORMS)
    if not isinstance(eps, (int, float)):
        raise TypeError(f"{op}: eps is {type(eps).__name__}; must be a float")
    if not 0 <= eps <= sys.float_info.max:
        raise ValueError(f"{op}: eps is {eps}; must be finite and >= 0")


def _fake(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    norm_weight: Tensor,
    bias: Tensor | None = None,
    norm_bias: Tensor | None = None,
    norm: str = "rms",
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(residual.shape), x.new_empty(residual.shape)


_op = Op(
    "linear_norm",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (
        *(make(3, 40), make(24, 40) / 6, make(3, 24), make(24), make(24), make(24), "rms", 1e-6),
    ),
    # Of results of the size of 1; on a GPU the product is rounded before the sum.
    tolerance={torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2},
    native_backends=("cpu",),
    triton="gossamer.kernels.linear_norm:linear_norm",
)
