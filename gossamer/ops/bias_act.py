"""Bias and activation in one pass over memory: what follows a linear layer."""

import torch
from torch import Tensor

from gossamer.ops.activations import activate, check_activation
from gossamer.ops.checks import check_has_last_dim, check_like, check_shape, check_tensor
from gossamer.ops.registry import Op


def bias_act(
    x: Tensor,
    bias: Tensor | None = None,
    activation: str = "gelu",
    *,
    backend: str | None = None,
) -> Tensor:
    """activation(x + bias), computed in float32 and rounded once.

    x: [..., n], float32, float16 or bfloat16, any strides. bias: [n], same dtype and device, or
    None. activation: "gelu" (x times the normal distribution), "gelu_tanh" (its tanh
    approximation), "silu" or "swish" (x * sigmoid(x)), "mish" (x * tanh(log(1 + e^x))), "relu2"
    (max(x, 0) squared) or "relu".
    Returns a contiguous tensor of x's shape and dtype. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, device, activation).

        y = bias_act(F.linear(x, weight), bias, "silu")
    """
    result: Tensor = _op(x, bias, activation, backend=backend)
    return result


def _reference(x: Tensor, bias: Tensor | None = None, activation: str = "gelu") -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide) if bias is None else x.to(wide) + bias.to(wide)
    return activate(y, activation).to(x.dtype).contiguous()


def _check(x: Tensor, bias: Tensor | None = None, activation: str = "gelu") -> None:
    op = "bias_act"
    check_tensor(op, "x", x)
    check_has_last_dim(op, "x", x)
    if bias is not None:
        check_like(op, "bias", bias, "x", x)
        check_shape(op, "bias", bias, (x.shape[-1],), "the last dimension of x")
    check_activation(op, activation)


def _fake(x: Tensor, bias: Tensor | None = None, activation: str = "gelu") -> Tensor:
    return x.new_empty(x.shape)


_op = Op(
    "bias_act",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(40), "gelu"),
    triton="gossamer.kernels.bias_act:bias_act",
)
