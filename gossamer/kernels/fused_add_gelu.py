"""Triton kernel of gossamer.ops.fused_add_gelu."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import POINTERS, Variant

BLOCK = 1024  # 2 to 4 16-byte accesses per thread at 4 warps


@triton.jit
def gelu_erf(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    # 0.5 (1 + tanh u) = sigmoid(2u), with u = sqrt(2/pi) (x + 0.044715 x^3)
    return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def fused_add_gelu_kernel(x_ptr, bias_ptr, out_ptr, numel, width, TANH: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < numel
    x = tl.load(x_ptr + offsets, mask=inside).to(tl.float32)
    x += tl.load(bias_ptr + offsets % width, mask=inside).to(tl.float32)
    y = gelu_tanh(x) if TANH else gelu_erf(x)
    tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=inside)


def fused_add_gelu(x: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    x, bias = x.contiguous(), bias.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    with torch.cuda.device_of(x):
        fused_add_gelu_kernel[(triton.cdiv(x.numel(), BLOCK),)](
            x, bias, out, x.numel(), x.shape[-1], TANH=approximate == "tanh", BLOCK=BLOCK
        )
    return out


def variants() -> list[Variant]:
    return [
        Variant(
            fused_add_gelu_kernel,
            {"x_ptr": p, "bias_ptr": p, "out_ptr": p, "numel": "i64", "width": "i32"},
            {"TANH": tanh, "BLOCK": BLOCK},
        )
        for p in POINTERS
        for tanh in (False, True)
    ]
