"""Activations as int8, with a scale for each token."""

import torch
from torch import Tensor

from gossamer.ops.checks import check_has_last_dim, check_tensor
from gossamer.ops.registry import Op

LIMIT = 127.0  # the largest code; -128 is not used


def quantize_int8(x: Tensor, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """(codes, scale): x [..., k] as int8 [..., k] times float32 [..., 1], a scale for each row.

    scale = max |x| / 127 of the row, 1 for a row of zeros; codes = x * (1 / scale), rounded to
    nearest even, so that codes * scale is off by half a scale at most. The same bits from every
    backend. x: float32, float16 or bfloat16, any strides. Returns contiguous tensors. Inference
    only. Raises TypeError (dtype) or ValueError (shape; NaN or infinity, with its row). That look
    at the scales waits for a GPU, so it is left out while a CUDA graph is captured and under
    torch.compile; torch.ops.gossamer.quantize_int8 never looks at what lies on a GPU.
    """
    codes, scale = _op(x, backend=backend)
    check_scales("quantize_int8", scale)
    return codes, scale


def check_scales(op: str, scale: Tensor) -> None:
    """Raises ValueError for a scale that is not finite, where the host may look at it."""
    if torch.compiler.is_compiling() or scale.is_meta:
        return
    if scale.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    finite = torch.isfinite(scale)
    if not finite.all():
        place = (~finite).nonzero()[0].tolist()
        raise ValueError(f"{op}: the scale at {place} is not finite; x has NaN or infinity there")


def scale_of(largest: Tensor, limit: float) -> Tensor:
    """Float32 scales for these largest magnitudes."""
    # By a tensor: on a GPU, torch would multiply by the rounded inverse of a number.
    scale = largest / torch.full_like(largest, limit)
    return torch.where(largest == 0, torch.ones_like(largest), scale)


def _reference(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    if x.shape[-1] == 0:
        return x.new_empty(x.shape, dtype=torch.int8), wide.new_ones((*x.shape[:-1], 1))
    scale = scale_of(wide.abs().amax(-1, keepdim=True), LIMIT)
    # Codes of a row that is not finite mean nothing.
    codes = (wide * (1 / scale)).round().nan_to_num(0.0, 0.0, 0.0)
    return codes.to(torch.int8).contiguous(), scale.contiguous()


def _check(x: Tensor) -> None:
    check_tensor("quantize_int8", "x", x)
    check_has_last_dim("quantize_int8", "x", x)


def _fake(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=torch.int8), scale


_op = Op(
    "quantize_int8",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40),),
    native_backends=("cpu",),
    triton="gossamer.kernels.quantize_int8:quantize_int8",
)
