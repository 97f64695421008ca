"""GEMM with weights of 8 bits, a scale for each row; activations stay as they are."""

import torch
from torch import Tensor

from gossamer.ops.linear_checks import check_bias, check_input, check_int8_weight, check_scale
from gossamer.ops.registry import Op

MAX_K = 131_071  # 128 * 128 * k stays below 2^31


def linear_int8_weights(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    """x @ (weight * weight_scale).T + bias, as [..., n] of x's dtype.

    x: [..., k] of float32, float16 or bfloat16, any strides. weight: int8 [n, k], rows contiguous;
    weight_scale: float32 [n, 1], as `quantize_int8` makes them. bias: [n] of x's dtype. For a CPU:
    x is rounded to 16 bits (of the largest of each 32 of a row, or of the row where there are more
    than 16 rows or k is no multiple of 32), which are multiplied as two int8 each, so a row with
    NaN or infinity becomes NaN; without AVX-512's VNNI, up to 16 rows are multiplied as they are.
    GPUs have `linear_int8`, for which `quantize_int8` makes int8 of x.
    Returns a contiguous tensor. Inference only. Raises TypeError (dtype) or ValueError (shape,
    strides, device).
    """
    result: Tensor = _op(x, weight, weight_scale, bias, backend=backend)
    return result


def _reference(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    result = x.to(wide) @ weight.to(wide).T * weight_scale.to(wide).T[0]
    if bias is not None:
        result = result + bias.to(wide)
    return result.to(x.dtype).contiguous()


def _check(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> None:
    op = "linear_int8_weights"
    check_input(op, x)
    if x.shape[-1] > MAX_K:
        raise ValueError(f"{op}: the last dimension of x is {x.shape[-1]}; must be 1 to {MAX_K}")
    check_int8_weight(op, weight, x)
    shapes = {"one for each row of weight": (weight.shape[0], 1)}
    check_scale(op, "weight_scale", weight_scale, shapes, x)
    check_bias(op, "bias", bias, x, weight.shape[0], "weight")


def _fake(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _example(make: object) -> tuple[object, ...]:
    """Of digits that 16 bits have: the largest number of each row is 32,639 / 16,384."""
    x = make(3, 64).mul(100).round().clamp(-127, 127) / 128  # type: ignore[operator]
    x[:, 0] = 32_639 / 16_384
    codes = torch.arange(24 * 64, device=x.device).remainder(255).sub(127).to(torch.int8)
    return x, codes.view(24, 64), torch.full((24, 1), 1 / 64, device=x.device), None


_op = Op(
    "linear_int8_weights",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=_example,
    native_backends=("cpu",),
    # Of results of the size of 100, of x in 16 bits.
    tolerance={torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2},
)
