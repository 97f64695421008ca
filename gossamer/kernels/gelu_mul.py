"""Triton kernel of gossamer.ops.gelu_mul."""

import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.gated import BLOCK, gated, launch
from gossamer.kernels.variants import POINTERS, Variant


@triton.jit
def gelu_mul_kernel(
    x_ptr, out_ptr, width, row_stride, blocks, TANH: tl.constexpr, BLOCK: tl.constexpr
):
    if TANH:
        gated(x_ptr, out_ptr, width, row_stride, blocks, "gelu_tanh", BLOCK)
    else:
        gated(x_ptr, out_ptr, width, row_stride, blocks, "gelu", BLOCK)


def gelu_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    return launch(gelu_mul_kernel, x, TANH=approximate == "tanh")


def variants() -> list[Variant]:
    """The programs that calls compile to, in float32 and in 16 bits."""
    sizes = {"width": "i32", "row_stride": "i32", "blocks": "i32"}
    return [
        Variant(
            gelu_mul_kernel,
            {"x_ptr": p, "out_ptr": p} | sizes,
            {"TANH": tanh, "BLOCK": BLOCK},
        )
        for p in POINTERS[::2]
        for tanh in (False, True)
    ]
