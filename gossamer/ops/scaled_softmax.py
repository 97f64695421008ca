"""Softmax of scaled scores in one pass over memory."""

import math

import torch
from torch import Tensor

from gossamer.ops.checks import check_has_last_dim, check_tensor
from gossamer.ops.registry import Op

FLOAT32_MAX = torch.finfo(torch.float32).max
CUDA_MAX_WIDTH = 8192  # of a row that 512 threads keep in registers


def scaled_softmax(x: Tensor, scale: float = 1.0, *, backend: str | None = None) -> Tensor:
    """softmax(x * scale) over the last dimension, computed in float32 and rounded once.

    x: [..., n], float32, float16 or bfloat16, any strides. scale: any finite number of float32's
    range, as 1 / sqrt(head_dim) for scores of attention, or 1 / temperature for logits.
    Returns a contiguous tensor of x's shape and dtype. A row with NaN or +inf, or of -inf alone, is
    NaN, as in torch.softmax. Inference only: no gradient.
    Raises TypeError (dtype, type of scale) or ValueError (shape, scale).

        weights = scaled_softmax(q @ k.mT, head_dim**-0.5)

    On a GPU, rows of more than 8,192 go to the Triton kernel, which cuts those of more than 32,768
    into parts: the CUDA kernel keeps a row in the registers of one thread block.
    """
    result: Tensor = _op(x, scale, backend=backend)
    return result


def _reference(x: Tensor, scale: float = 1.0) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.softmax(x.to(wide) * scale, dim=-1).to(x.dtype).contiguous()


def _check(x: Tensor, scale: float = 1.0) -> None:
    op = "scaled_softmax"
    check_tensor(op, "x", x)
    check_has_last_dim(op, "x", x)
    if not isinstance(scale, (int, float)):
        raise TypeError(f"{op}: scale is {type(scale).__name__}; must be a float")
    if math.isnan(scale) or abs(scale) > FLOAT32_MAX:
        raise ValueError(f"{op}: scale is {scale}; must be finite in float32")


def _fake(x: Tensor, scale: float = 1.0) -> Tensor:
    return x.new_empty(x.shape)


def _limits(x: Tensor, scale: float = 1.0) -> str | None:
    width = x.shape[-1] if x.dim() else 0
    if width > CUDA_MAX_WIDTH:
        return f"the last dimension of x is {width}; must be at most {CUDA_MAX_WIDTH}"
    return None


_op = Op(
    "scaled_softmax",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), 0.125),
    triton="gossamer.kernels.scaled_softmax:scaled_softmax",
    limits=_limits,
    tuned=f"rows of at most {CUDA_MAX_WIDTH:,}",
)
