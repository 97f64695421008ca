"""Activations and weights as float8_e4m3fn, with scales for all, for each row or each block."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.ops.checks import check_has_last_dim, check_tensor, one_of
from gossamer.ops.quantize_int8 import check_scales, scale_of
from gossamer.ops.registry import Op

GRANULARITIES = ("tensor", "row", "group", "block")
GROUP = 128  # elements of a row that share a scale, and rows of a block
LIMIT = 448.0  # the largest float8_e4m3fn


def quantize_fp8(
    x: Tensor, granularity: str = "row", *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """(codes, scale): x [..., k] as float8_e4m3fn [..., k] times float32 scales.

    granularity: "tensor": scale [1]. "row": [..., 1], a scale for each row. "group": [..., g], for
    each 128 elements of a row, g = ceil(k / 128): for activations. "block": [ceil(rows / 128), g],
    for each 128 rows and 128 columns of x [rows, k]: for weights.
    scale = max |x| / 448 over its elements, 1 where they are zeros; codes = x * (1 / scale),
    rounded to nearest even. The same bits from every backend. Plain torch on a CPU, as linear_fp8,
    which it is for.
    x: float32, float16 or bfloat16, any strides. Returns contiguous tensors. Inference only.
    Raises TypeError (dtype) or ValueError (shape, granularity; NaN or infinity, with its place
    among the scales). That look at the scales waits for a GPU, so it is left out while a CUDA graph
    is captured and under torch.compile; torch.ops.gossamer.quantize_fp8 never looks at a GPU's.
    """
    codes, scale = _op(x, granularity, backend=backend)
    check_scales("quantize_fp8", scale)
    return codes, scale


def scale_shape(x: Tensor, granularity: str) -> tuple[int, ...]:
    """The shape of the scales of x."""
    groups = (x.shape[-1] + GROUP - 1) // GROUP
    if granularity == "tensor":
        return (1,)
    if granularity == "row":
        return (*x.shape[:-1], 1)
    if granularity == "group":
        return (*x.shape[:-1], groups)
    return ((x.shape[0] + GROUP - 1) // GROUP, groups)


def expanded(scale: Tensor, x: Tensor, granularity: str) -> Tensor:
    """Scales as a tensor that broadcasts to x."""
    if granularity in ("tensor", "row"):
        return scale
    scale = scale.repeat_interleave(GROUP, -1)[..., : x.shape[-1]]
    return scale if granularity == "group" else scale.repeat_interleave(GROUP, 0)[: x.shape[0]]


def _largest(magnitude: Tensor, granularity: str) -> Tensor:
    """The largest of each part that shares a scale."""
    if granularity == "tensor":
        return magnitude.amax().reshape(1)
    if granularity == "row":
        return magnitude.amax(-1, keepdim=True)
    groups = _split(magnitude, -1).amax(-1)
    return groups if granularity == "group" else _split(groups, 0).amax(1)


def _split(x: Tensor, dim: int) -> Tensor:
    """x with this dimension, filled up with zeros, as two: parts of 128 elements."""
    missing = -x.shape[dim] % GROUP
    padded = F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing))
    return torch.unflatten(padded, dim, (-1, GROUP))


def _reference(x: Tensor, granularity: str = "row") -> tuple[Tensor, Tensor]:
    wide = x.float()
    if x.numel() == 0:
        scale = wide.new_ones(scale_shape(x, granularity))
        return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), scale
    scale = scale_of(_largest(wide.abs(), granularity), LIMIT)
    codes = (wide * expanded(1 / scale, x, granularity)).clamp(-LIMIT, LIMIT)
    return codes.to(torch.float8_e4m3fn).contiguous(), scale.contiguous()


def _check(x: Tensor, granularity: str = "row") -> None:
    op = "quantize_fp8"
    check_tensor(op, "x", x)
    check_has_last_dim(op, "x", x)
    one_of(f"{op}: granularity", granularity, GRANULARITIES)
    if granularity == "block" and x.dim() != 2:
        raise ValueError(f"{op}: x has {x.dim()} dimensions; must have 2 for granularity 'block'")


def _fake(x: Tensor, granularity: str = "row") -> tuple[Tensor, Tensor]:
    scale = x.new_empty(scale_shape(x, granularity), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=torch.float8_e4m3fn), scale


_op = Op(
    "quantize_fp8",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (make(3, 40), "row"),
    native_backends=(),
    triton="gossamer.kernels.quantize_fp8:quantize_fp8",
)
