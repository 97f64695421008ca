"""A product of int8 matrices with a scale for each token and each channel (w8a8)."""

import torch
from torch import Tensor

from gossamer.ops.linear_8bit_checks import check_product, check_scale
from gossamer.ops.registry import Op


def linear_int8(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    *,
    backend: str | None = None,
) -> Tensor:
    """(x @ weight.T) * x_scale * weight_scale.T + bias, as [..., n] of `dtype`.

    x: int8 [..., k], x_scale: float32 [..., 1], as quantize_int8 makes them. weight: int8 [n, k],
    rows of k elements side by side, weight_scale: float32 [n, 1]; quantize_int8 makes these of a
    weight as well. bias: [n] of `dtype` (float32, float16 or bfloat16). k from 1 to 133,000: sums
    are exact in int32, scaled in float32 and rounded once.
    Returns a contiguous tensor. Inference only. Raises TypeError (dtype) or ValueError (shape,
    strides, device).
    """
    args = (x, x_scale, weight, weight_scale, bias, dtype)
    result: Tensor = _op(*args, backend=backend)
    return result


MAX_K = 133_000  # 127 * 127 * k stays below 2^31


def _reference(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    # Sums of products of codes are exact in float64.
    result = (x.double() @ weight.double().T).float() * (x_scale * weight_scale.T[0])
    if bias is not None:
        result = result + bias.float()
    return result.to(dtype).contiguous()


def _check(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> None:
    op = "linear_int8"
    check_product(op, x, weight, bias, torch.int8, dtype)
    if x.shape[-1] > MAX_K:
        raise ValueError(f"{op}: the last dimension of x is {x.shape[-1]}; must be 1 to {MAX_K}")
    check_scale(op, "x_scale", x_scale, {"one for each row": (*x.shape[:-1], 1)}, x)
    shapes = {"one for each row of weight": (weight.shape[0], 1)}
    check_scale(op, "weight_scale", weight_scale, shapes, x)


def _fake(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


def _example(make: object) -> tuple[object, ...]:
    device = make(1).device  # type: ignore[operator]
    codes = [torch.arange(n).remainder(255).sub(127).to(torch.int8) for n in (3 * 48, 24 * 48)]
    x, weight = codes[0].view(3, 48).to(device), codes[1].view(24, 48).to(device)
    scales = (torch.ones(n, 1, device=device) / 64 for n in (3, 24))
    return x, next(scales), weight, next(scales), None, torch.bfloat16


_op = Op(
    "linear_int8",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=_example,
    native_backends=("cpu", "cuda"),
    triton="gossamer.kernels.linear_int8:linear_int8",
)
