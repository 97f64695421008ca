"""Triton kernel of gossamer.ops.bias_act."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.activations import activate
from gossamer.kernels.variants import MAX_ELEMENTS, POINTERS, Variant

BLOCK = 1024  # 2 to 4 16-byte accesses per thread at 4 warps


@triton.jit
def bias_act_kernel(
    x_ptr, bias_ptr, out_ptr, numel, width, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Contiguous x and out of fewer than 2^31 elements; bias_ptr is read if BIAS."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < numel
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    if BIAS:
        x += tl.load(bias_ptr + offsets % width, mask=inside).to(tl.float32)
    y = activate(x, ACTIVATION)
    tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=inside)


def bias_act(x: Tensor, bias: Tensor | None = None, activation: str = "gelu") -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    x = x.contiguous()
    bias = bias if bias is None else bias.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        rows = (-1, x.shape[-1])
        with torch.cuda.device_of(x):
            name = "silu" if activation == "swish" else activation
            _launch(x.view(rows), bias, out.view(rows), name)
    return out


def _launch(x: Tensor, bias: Tensor | None, out: Tensor, activation: str) -> None:
    if out.numel() <= MAX_ELEMENTS:
        bias_act_kernel[(triton.cdiv(out.numel(), BLOCK),)](
            x, x if bias is None else bias, out, out.numel(), out.shape[1],
            BIAS=bias is not None, ACTIVATION=activation, BLOCK=BLOCK,
        )  # fmt: skip
        return
    dim = 0 if x.shape[0] > 1 else 1  # halves of contiguous memory either way
    biases = (bias, bias) if dim == 0 or bias is None else bias.tensor_split(2)
    for part in zip(x.tensor_split(2, dim), biases, out.tensor_split(2, dim), strict=True):
        _launch(*part, activation)


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: every dtype, each with another activation."""
    names = ("gelu", "mish", "relu2")
    return [
        Variant(
            bias_act_kernel,
            {"x_ptr": p, "bias_ptr": p, "out_ptr": p, "numel": "i32", "width": "i32"},
            {"BIAS": i % 2 == 0, "ACTIVATION": name, "BLOCK": BLOCK},
        )
        for i, (name, p) in enumerate(zip(names, POINTERS, strict=True))
    ]
