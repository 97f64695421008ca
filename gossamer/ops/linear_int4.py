"""GEMM with weights of 4 bits, in groups with a scale and a zero; activations stay as they are."""

import torch
from torch import Tensor

from gossamer.ops.checks import (
    check_has_last_dim,
    check_like,
    check_shape,
    check_tensor,
    dtype_name,
)
from gossamer.ops.registry import Op

RUN = 32  # weights of a row whose codes lie in 16 bytes


def linear_int4(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    """x @ ((codes - zero) * scale).T + bias, as [..., n] of x's dtype.

    x: [..., k] of float32, float16 or bfloat16, any strides. codes: uint8 [n, k / 2], two to a
    byte: of each 32 weights of a row, byte i (0 to 15) has weight i in its low half and weight
    i + 16 in its high half. scale, zero: float16 [n, k / group], for each `group` weights of a
    row; the group is a multiple of 32. bias: [n] of x's dtype. On a GPU, weights are rounded to
    x's dtype for the tensor cores; sums are in float32 and rounded once. Made for few rows: 1 to 16
    on a CPU, 1 to 64 on a GPU; for more, weights are expanded first and multiplied by torch. With
    AVX-512's VNNI, few rows are rounded to 16 bits of the largest number of each 32 and multiplied
    in integers; a row with NaN or infinity becomes NaN.
    Returns a contiguous tensor. Inference only. Raises TypeError (dtype) or ValueError (shape,
    strides, device).
    """
    result: Tensor = _op(x, codes, scale, zero, bias, backend=backend)
    return result


def dequantized(codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """float32 [n, k]."""
    groups: Tensor = unpacked(codes).float().unflatten(1, (scale.shape[1], -1))
    return ((groups - zero.float()[..., None]) * scale.float()[..., None]).flatten(1)


def unpacked(codes: Tensor) -> Tensor:
    """uint8 [n, k] with a code in each byte."""
    runs = codes.unflatten(1, (-1, RUN // 2))
    return torch.cat((runs & 15, runs >> 4), 2).flatten(1)


def _reference(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    result = x.to(wide) @ dequantized(codes, scale, zero).to(wide).T
    if bias is not None:
        result = result + bias.to(wide)
    return result.to(x.dtype).contiguous()


def _check(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None
) -> None:
    op = "linear_int4"
    check_tensor(op, "x", x)
    check_has_last_dim(op, "x", x)
    k = x.shape[-1]
    if k < RUN or k % RUN:
        raise ValueError(f"{op}: the last dimension of x is {k}; must be a multiple of {RUN}")
    _check_rows(op, "codes", codes, torch.uint8, x)
    n = codes.shape[0]
    if codes.shape[1] * 2 != k:
        raise ValueError(
            f"{op}: codes has shape {list(codes.shape)}; must be [n, {k // 2}], two to a byte"
        )
    for name, numbers in (("scale", scale), ("zero", zero)):
        _check_rows(op, name, numbers, torch.float16, x)
        groups = numbers.shape[1]
        if numbers.shape[0] != n or groups < 1 or k % groups or k // groups % RUN:
            raise ValueError(
                f"{op}: {name} has shape {list(numbers.shape)}; must be [{n}, {k} / group] for a "
                f"group that is a multiple of {RUN}"
            )
    check_shape(op, "zero", zero, tuple(scale.shape), "as scale")
    if bias is not None:
        check_like(op, "bias", bias, "x", x)
        check_shape(op, "bias", bias, (n,), "one for each row of codes")


def _check_rows(op: str, name: str, t: Tensor, dtype: torch.dtype, x: Tensor) -> None:
    """A matrix of this type whose rows are contiguous, where x is."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{op}: {name} is {type(t).__name__}; must be a torch.Tensor")
    if t.dtype is not dtype:
        raise TypeError(
            f"{op}: {name} has dtype {dtype_name(t.dtype)}; must be {dtype_name(dtype)}"
        )
    if t.device != x.device:
        raise ValueError(f"{op}: {name} is on {t.device}; must be on {x.device}, the device of x")
    if t.dim() != 2:
        raise ValueError(f"{op}: {name} has shape {list(t.shape)}; must have two dimensions")
    if t.shape[1] > 1 and t.stride(1) != 1:
        raise ValueError(f"{op}: {name} has strides {list(t.stride())}; rows must be contiguous")


def _fake(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None
) -> Tensor:
    return x.new_empty((*x.shape[:-1], codes.shape[0]))


def _example(make: object) -> tuple[object, ...]:
    x = make(3, 64)  # type: ignore[operator]
    codes = torch.arange(24 * 32, device=x.device).remainder(251).to(torch.uint8).view(24, 32)
    scale = torch.full((24, 2), 1 / 64, dtype=torch.float16, device=x.device)
    return x, codes, scale, torch.full_like(scale, 7.5), None


_op = Op(
    "linear_int4",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=_example,
    native_backends=("cpu",),
    triton="gossamer.kernels.linear_int4:linear_int4",
    # For tensor cores, weights are rounded to the type of x; on a CPU, x has 16 bits.
    tolerance={torch.float32: 3e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2},
)
