"""Triton kernel of gossamer.ops.silu_mul."""

import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.gated import BLOCK, gated, launch
from gossamer.kernels.variants import POINTERS, Variant


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, width, row_stride, blocks, BLOCK: tl.constexpr):
    gated(x_ptr, out_ptr, width, row_stride, blocks, "silu", BLOCK)


def silu_mul(x: Tensor) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    return launch(silu_mul_kernel, x)


def variants() -> list[Variant]:
    """The programs that calls compile to."""
    sizes = {"width": "i32", "row_stride": "i32", "blocks": "i32"}
    return [
        Variant(silu_mul_kernel, {"x_ptr": p, "out_ptr": p} | sizes, {"BLOCK": BLOCK})
        for p in POINTERS
    ]
