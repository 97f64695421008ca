"""A GEMM, its bias and its activation, without a second pass over the result."""

import torch
from torch import Tensor

from gossamer.ops.activations import activate, check_activation
from gossamer.ops.linear_checks import check_bias, check_input, check_weight
from gossamer.ops.registry import Op


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "gelu",
    *,
    backend: str | None = None,
) -> Tensor:
    """activation(x @ weight.T + bias) for x [..., k], weight [n, k] and bias [n].

    activation: "gelu", "gelu_tanh", "silu", "swish" (silu), "mish", "relu2" or "relu".
    x, bias: any strides. weight: rows of k elements side by side. k at least 1. One dtype (float32,
    float16 or bfloat16) and device. Sums, bias and activation are in float32; rounded once, but for
    more than 16 rows on a CPU, where torch's GEMM is rounded before bias and activation. The
    CUDA kernels are for 16 bits on sm_90, up to 64 rows (k a multiple of 8) or 192 and more (n a
    multiple of 8 too), rows of weight in multiples of 16 bytes; other calls go on to Triton's.
    Returns a contiguous tensor [..., n]. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, activation).
    """
    result: Tensor = _op(x, weight, bias, activation, backend=backend)
    return result


def _reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "gelu"
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    product = x.to(wide) @ weight.to(wide).T
    if bias is not None:
        product = product + bias.to(wide)
    return activate(product, activation).to(x.dtype).contiguous()


def _check(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "gelu") -> None:
    op = "linear_act"
    check_input(op, x)
    check_weight(op, "weight", weight, x)
    check_bias(op, "bias", bias, x, weight.shape[0], "weight")
    check_activation(op, activation)


def _fake(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "gelu"
) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_op = Op(
    "linear_act",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(24, 40), make(24), "gelu"),
    triton="gossamer.kernels.linear_act:linear_act",
)
