"""Triton kernel of gossamer.ops.rmsnorm."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.norm import launch, launch_options, norm_row, norm_row_wide
from gossamer.kernels.variants import POINTERS, Variant


@triton.jit
def rmsnorm_kernel(
    x_ptr, weight_ptr, normed_ptr, width, eps, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    if WIDE:
        norm_row_wide(
            x_ptr, None, None, weight_ptr, None, normed_ptr, None, width, eps, False, BLOCK
        )
    else:
        norm_row(x_ptr, None, None, weight_ptr, None, normed_ptr, None, width, eps, False, BLOCK)


def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    x = x.contiguous()
    normed = torch.empty_like(x)
    launch(rmsnorm_kernel, (x,), (weight.contiguous(),), (normed,), eps)
    return normed


def variants() -> list[Variant]:
    """Some of the programs that calls compile to, in float32 and in 16 bits."""
    return [
        Variant(
            rmsnorm_kernel,
            dict.fromkeys(("x_ptr", "weight_ptr", "normed_ptr"), p)
            | {"width": "i32", "eps": "fp32"},
            {"WIDE": options["WIDE"], "BLOCK": options["BLOCK"]},
            options["num_warps"],
        )
        for p in POINTERS[::2]
        for options in map(launch_options, (4096, 65_536))
    ]
