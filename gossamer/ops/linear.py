"""A skinny GEMM, a few rows times a weight matrix: what a decode step spends its time on."""

import torch
from torch import Tensor

from gossamer.ops.checks import check_like, check_shape, check_tensor
from gossamer.ops.registry import Op


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None
) -> Tensor:
    """x @ weight.T + bias for x [rows, k], weight [n, k] and bias [n], added up in float32.

    Made for 1 to 16 rows on a CPU: up to 8 take 1 to 1.8 times as long as one, which is about as
    long as reading the weights. On a CPU a row's result does not depend on the others by a bit.
    x, bias: any strides. weight: rows of k elements side by side, k at least 1. One dtype (float32,
    float16 or bfloat16) and device. bfloat16 numbers below 1.2e-38 may count as 0.
    Returns a contiguous tensor [rows, n], rounded once. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device).
    """
    result: Tensor = _op(x, weight, bias, backend=backend)
    return result


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    product = x.to(wide) @ weight.to(wide).T
    if bias is not None:
        product = product + bias.to(wide)
    return product.to(x.dtype).contiguous()


def _check(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    op = "linear"
    check_tensor(op, "x", x)
    check_like(op, "weight", weight, "x", x)
    if x.dim() != 2 or x.shape[1] < 1:
        raise ValueError(f"{op}: x has shape {list(x.shape)}; must be [rows, k], k at least 1")
    k = x.shape[1]
    if weight.dim() != 2 or weight.shape[1] != k:
        raise ValueError(
            f"{op}: weight has shape {list(weight.shape)}; must be [n, {k}], k as in x"
        )
    if k > 1 and weight.stride(1) != 1:  # a copy in each call would be slow in silence
        raise ValueError(
            f"{op}: weight has strides {list(weight.stride())}; rows must be contiguous"
        )
    if bias is not None:
        check_like(op, "bias", bias, "x", x)
        check_shape(op, "bias", bias, (weight.shape[0],), "one for each row of weight")


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


_op = Op(
    "linear",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(24, 40), make(24)),
    native_backends=("cpu",),
)
