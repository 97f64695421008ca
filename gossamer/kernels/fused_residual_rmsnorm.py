"""Triton kernel of gossamer.ops.fused_residual_rmsnorm."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.norm import launch, launch_options, norm_row, norm_row_wide
from gossamer.kernels.variants import POINTERS, Variant


@triton.jit
def fused_residual_rmsnorm_kernel(
    x_ptr, residual_ptr, weight_ptr, normed_ptr, sum_ptr, width, eps, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    if WIDE:
        norm_row_wide(
            x_ptr, None, residual_ptr, weight_ptr, None, normed_ptr, sum_ptr, width, eps, False,
            BLOCK,
        )  # fmt: skip
    else:
        norm_row(
            x_ptr, None, residual_ptr, weight_ptr, None, normed_ptr, sum_ptr, width, eps, False,
            BLOCK,
        )  # fmt: skip


def fused_residual_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The launcher; arguments are those of the op, already checked."""
    x, residual = x.contiguous(), residual.contiguous()
    results = torch.empty_like(x), torch.empty_like(x)
    launch(fused_residual_rmsnorm_kernel, (x, residual), (weight.contiguous(),), results, eps)
    return results


def variants() -> list[Variant]:
    """The programs that calls compile to."""
    pointers = ("x_ptr", "residual_ptr", "weight_ptr", "normed_ptr", "sum_ptr")
    return [
        Variant(
            fused_residual_rmsnorm_kernel,
            dict.fromkeys(pointers, p) | {"width": "i32", "eps": "fp32"},
            {"WIDE": options["WIDE"], "BLOCK": options["BLOCK"]},
            options["num_warps"],
        )
        for p in POINTERS
        for options in map(launch_options, (1, 256, 4096, 8192, 65_536))
    ]
