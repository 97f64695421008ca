"""A matrix product, its bias and its activation, without a second pass over the result."""

import torch
from torch import Tensor

from gossamer.ops.activations import activate, check_activation
from gossamer.ops.linear_checks import aligned, check_bias, check_input, check_weight, hopper
from gossamer.ops.registry import Op

LEAST_ROWS = 65  # of x, for the CUDA kernel: its tiles have 128


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
    more than 16 rows on a CPU, where torch's product is rounded before bias and activation.
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


def _check(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "gelu"
) -> None:
    op = "linear_act"
    check_input(op, x)
    check_weight(op, "weight", weight, x)
    check_bias(op, "bias", bias, x, weight.shape[0], "weight")
    check_activation(op, activation)


def _fake(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "gelu"
) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


TUNED = (
    f"fp16 and bf16 on sm_90, at least {LEAST_ROWS} rows, n a multiple of 8, "
    "rows in multiples of 16 bytes"
)


def _limits(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "gelu"
) -> str | None:
    """Why the CUDA kernel does not take these arguments."""
    if x.dtype is torch.float32 or not hopper(x) or not aligned(weight):
        return f"the CUDA kernel takes {TUNED}"
    few = x.numel() < LEAST_ROWS * weight.shape[1]
    return f"the CUDA kernel takes {TUNED}" if few else None


_op = Op(
    "linear_act",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(24, 40), make(24), "gelu"),
    limits=_limits,
    tuned=TUNED,
    triton="gossamer.kernels.linear_act:linear_act",
)
