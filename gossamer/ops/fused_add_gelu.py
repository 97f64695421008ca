"""GELU of a biased tensor in one pass over memory: what follows the first GEMM of an MLP."""

from typing import Literal

import torch
from torch import Tensor

from gossamer.ops.activations import gelu, gelu_tanh
from gossamer.ops.checks import check_has_last_dim, check_like, check_shape, check_tensor
from gossamer.ops.registry import Op


def fused_add_gelu(
    x: Tensor,
    bias: Tensor,
    approximate: Literal["none", "tanh"] = "none",
    *,
    backend: str | None = None,
) -> Tensor:
    """gelu(x + bias), computed in float32.

    x: [..., n], float32, float16 or bfloat16, any strides. bias: [n], same dtype and device.
    approximate: "none" for x * Phi(x), "tanh" for its tanh approximation.
    Returns a contiguous tensor of x's shape and dtype. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, device, approximate).
    """
    result: Tensor = _op(x, bias, approximate, backend=backend)
    return result


def _reference(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide) + bias.to(wide)
    y = gelu(y) if approximate == "none" else gelu_tanh(y)
    return y.to(x.dtype).contiguous()


def _check(x: Tensor, bias: Tensor, approximate: str = "none") -> None:
    op = "fused_add_gelu"
    check_tensor(op, "x", x)
    check_like(op, "bias", bias, "x", x)
    check_has_last_dim(op, "x", x)
    check_shape(op, "bias", bias, (x.shape[-1],), "the last dimension of x")
    if approximate not in ("none", "tanh"):
        raise ValueError(f"{op}: approximate is {approximate!r}; must be 'none' or 'tanh'")


def _fake(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    return x.new_empty(x.shape)


_op = Op(
    "fused_add_gelu",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), make(40), "none"),
    triton="gossamer.kernels.fused_add_gelu:fused_add_gelu",
)
