"""GEMM of float8 matrices with scales per tensor, per token and channel, or per block."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import Linear8BitArguments, named
from gossamer.ops.linear_checks import GROUP, check_codes, check_scale, fake_linear_8bit
from gossamer.ops.registry import Op


def linear_fp8(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    *,
    backend: str | None = None,
) -> Tensor:
    """(x * x_scale) @ (weight * weight_scale).T + bias, as [..., n] of `dtype`.

    x: float8_e4m3fn [..., k]; x_scale: float32 [1], [..., 1] (a scale for each row) or [..., g]
    (for each 128 elements of a row, g = ceil(k / 128)). weight: float8_e4m3fn [n, k], rows of k
    elements side by side; weight_scale: float32 [1], [n, 1] or [ceil(n / 128), g] (for each block
    of 128 x 128). quantize_fp8 makes them: "tensor", "row", "group" for x, "block" for weight.
    bias: [n] of `dtype` (float32, float16 or bfloat16).
    Added up in float32 and rounded once; but tensor cores of sm_90 keep about 14 bits of a sum of
    products of float8: at k = 8192, results are off by 2.6e-3 in all, 1.7e-3 of it by bfloat16.
    Terms that all have one sign lose more, 1.5% at k = 1024 and 13% at 8192, as they do in
    torch._scaled_mm with use_fast_accum. Scales of groups and blocks make sums short: 7e-4 then.
    CPUs have no arithmetic for float8, hence no kernel there: the reference multiplies in float32.
    Returns a contiguous tensor. Inference only. Raises TypeError (dtype) or ValueError (shape,
    strides, device).
    """
    args = (x, x_scale, weight, weight_scale, bias, dtype)
    result: Tensor = _op(*args, backend=backend)
    return result


def expand_scale(scale: Tensor, codes: Tensor) -> Tensor:
    """Scales as a tensor that broadcasts to the codes [..., k]."""
    if scale.shape[-1] != 1:
        scale = scale.repeat_interleave(GROUP, -1)[..., : codes.shape[-1]]
    if scale.dim() == 2 and codes.dim() == 2 and scale.shape[0] not in (1, codes.shape[0]):
        scale = scale.repeat_interleave(GROUP, 0)[: codes.shape[0]]
    return scale


@named(Linear8BitArguments)
def _reference(a: Linear8BitArguments) -> Tensor:
    x = a.x.float() * expand_scale(a.x_scale, a.x)
    weight = a.weight.float() * expand_scale(a.weight_scale, a.weight)
    result = x @ weight.T
    if a.bias is not None:
        result = result + a.bias.float()
    return result.to(a.dtype).contiguous()


@named(Linear8BitArguments)
def _check(a: Linear8BitArguments) -> None:
    op = "linear_fp8"
    check_codes(op, a, torch.float8_e4m3fn)
    n, k = a.weight.shape
    rows, groups = a.x.shape[:-1], (k + GROUP - 1) // GROUP
    shapes = {"one": (1,), "one for each row": (*rows, 1), "one for each 128 of k": (*rows, groups)}
    check_scale(op, "x_scale", a.x_scale, shapes, a.x)
    shapes = {
        "one": (1,),
        "one for each row": (n, 1),
        "one for each block": ((n + GROUP - 1) // GROUP, groups),
    }
    check_scale(op, "weight_scale", a.weight_scale, shapes, a.x)


def _example(make: object) -> tuple[object, ...]:
    device = make(1).device  # type: ignore[operator]
    codes = [torch.arange(n).remainder(17).sub(8).to(torch.float8_e4m3fn) for n in (144, 1152)]
    x, weight = codes[0].view(3, 48).to(device), codes[1].view(24, 48).to(device)
    scales = (torch.ones(n, 1, device=device) / 64 for n in (3, 24))
    return x, next(scales), weight, next(scales), None, torch.bfloat16


_op = Op(
    "linear_fp8",
    reference=_reference,
    check=_check,
    fake=fake_linear_8bit,
    example=_example,
    native_backends=("cuda",),
    triton="gossamer.kernels.linear_fp8:linear_fp8",
)
