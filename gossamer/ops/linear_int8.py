"""GEMM of int8 matrices with a scale for each token and each channel (w8a8)."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import Linear8BitArguments, named
from gossamer.ops.linear_checks import check_codes, check_scale, fake_linear_8bit
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


@named(Linear8BitArguments)
def _reference(a: Linear8BitArguments) -> Tensor:
    # Sums of products of codes are exact in float64.
    result = (a.x.double() @ a.weight.double().T).float() * (a.x_scale * a.weight_scale.T[0])
    if a.bias is not None:
        result = result + a.bias.float()
    return result.to(a.dtype).contiguous()


@named(Linear8BitArguments)
def _check(a: Linear8BitArguments) -> None:
    op = "linear_int8"
    check_codes(op, a, torch.int8)
    if a.x.shape[-1] > MAX_K:
        raise ValueError(f"{op}: the last dimension of x is {a.x.shape[-1]}; must be 1 to {MAX_K}")
    check_scale(op, "x_scale", a.x_scale, {"one for each row": (*a.x.shape[:-1], 1)}, a.x)
    shapes = {"one for each row of weight": (a.weight.shape[0], 1)}
    check_scale(op, "weight_scale", a.weight_scale, shapes, a.x)


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
    fake=fake_linear_8bit,
    example=_example,
    native_backends=("cpu", "cuda"),
    triton="gossamer.kernels.linear_int8:linear_int8",
)
