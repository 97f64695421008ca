"""Triton kernel of gossamer.ops.fused_add_gelu."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.activations import gelu_erf, gelu_tanh
from gossamer.kernels.variants import MAX_ELEMENTS, POINTERS, Variant

BLOCK = 1024  # 2 to 4 16-byte accesses per thread at 4 warps


@triton.jit
def fused_add_gelu_kernel(
    x_ptr, bias_ptr, out_ptr, numel, width, TANH: tl.constexpr, BLOCK: tl.constexpr
):
    """Contiguous x and out of fewer than 2^31 elements."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < numel
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    x += tl.load(bias_ptr + offsets % width, mask=inside).to(tl.float32)
    y = gelu_tanh(x) if TANH else gelu_erf(x)
    tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=inside)


def fused_add_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    x, bias = x.contiguous(), bias.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        rows = (-1, x.shape[-1])
        with torch.cuda.device_of(x):
            _launch(x.view(rows), bias, out.view(rows), approximate == "tanh")
    return out


def _launch(x: Tensor, bias: Tensor, out: Tensor, tanh: bool) -> None:
    if out.numel() <= MAX_ELEMENTS:
        grid = (triton.cdiv(out.numel(), BLOCK),)
        fused_add_gelu_kernel[grid](x, bias, out, out.numel(), bias.numel(), TANH=tanh, BLOCK=BLOCK)
        return
    dim = 0 if x.shape[0] > 1 else 1  # halves of contiguous memory either way
    biases = (bias, bias) if dim == 0 else bias.tensor_split(2)
    for part in zip(x.tensor_split(2, dim), biases, out.tensor_split(2, dim), strict=True):
        _launch(*part, tanh)


def variants() -> list[Variant]:
    """The programs that calls compile to."""
    return [
        Variant(
            fused_add_gelu_kernel,
            {"x_ptr": p, "bias_ptr": p, "out_ptr": p, "numel": "i32", "width": "i32"},
            {"TANH": tanh, "BLOCK": BLOCK},
        )
        for p in POINTERS
        for tanh in (False, True)
    ]
