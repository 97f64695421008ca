"""The end of a decoder sublayer: GEMM, bias, residual addition and the next layer's norm."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import LinearNormArguments, named
from gossamer.ops.checks import check_like, check_shape, one_of
from gossamer.ops.linear_checks import check_bias, check_input, check_weight
from gossamer.ops.norm_checks import MAX_WIDTH, check_eps
from gossamer.ops.registry import Op

NORMS = ("rms", "layer")


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
    second. On a GPU, and for more than 16 rows on a CPU, the GEMM is rounded before it is added,
    as in a model that calls one after the other.
    Returns contiguous tensors. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, norm, eps).
    """
    args = (x, weight, residual, norm_weight, bias, norm_bias, norm, eps)
    result: tuple[Tensor, Tensor] = _op(*args, backend=backend)
    return result


@named(LinearNormArguments)
def _reference(a: LinearNormArguments) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(a.x.dtype, torch.float32)
    total = a.x.to(wide) @ a.weight.to(wide).T + a.residual.to(wide)
    if a.bias is not None:
        total = total + a.bias.to(wide)
    rounded = total.to(a.x.dtype).contiguous()
    h = rounded.to(wide)
    if a.norm == "layer":
        h = h - h.mean(dim=-1, keepdim=True)
    normed = h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + a.eps) * a.norm_weight.to(wide)
    if a.norm_bias is not None:
        normed = normed + a.norm_bias.to(wide)
    return normed.to(a.x.dtype).contiguous(), rounded


@named(LinearNormArguments)
def _check(a: LinearNormArguments) -> None:
    op = "linear_norm"
    check_input(op, a.x)
    check_weight(op, "weight", a.weight, a.x)
    n = a.weight.shape[0]
    if not 1 <= n <= MAX_WIDTH:
        raise ValueError(f"{op}: weight has {n} rows; must have 1 to {MAX_WIDTH}")
    check_like(op, "residual", a.residual, "x", a.x)
    check_shape(op, "residual", a.residual, (*a.x.shape[:-1], n), "that of x @ weight.T")
    check_like(op, "norm_weight", a.norm_weight, "x", a.x)
    check_shape(op, "norm_weight", a.norm_weight, (n,), "one for each row of weight")
    check_bias(op, "bias", a.bias, a.x, n, "weight")
    check_bias(op, "norm_bias", a.norm_bias, a.x, n, "weight")
    one_of(f"{op}: norm", a.norm, NORMS)
    check_eps(op, a.eps)


@named(LinearNormArguments)
def _fake(a: LinearNormArguments) -> tuple[Tensor, Tensor]:
    return a.x.new_empty(a.residual.shape), a.x.new_empty(a.residual.shape)


_op = Op(
    "linear_norm",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (
        *(make(3, 40), make(24, 40) / 6, make(3, 24), make(24), make(24), make(24), "rms", 1e-6),
    ),
    # Of results of the size of 1; on a GPU the GEMM is rounded before the sum.
    tolerance={torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2},
    native_backends=("cpu",),
    triton="gossamer.kernels.linear_norm:linear_norm",
)
