"""Triton kernel of gossamer.ops.fused_residual_layernorm."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.arguments import FusedResidualLayernormArguments, named
from gossamer.kernels.norm import launch, launch_options, norm_row, norm_row_wide
from gossamer.kernels.variants import POINTERS, Variant


@triton.jit
def fused_residual_layernorm_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, input_bias_ptr, normed_ptr, sum_ptr, width, eps,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if WIDE:
        norm_row_wide(
            x_ptr, input_bias_ptr, residual_ptr, weight_ptr, bias_ptr, normed_ptr, sum_ptr, width,
            eps, True, BLOCK,
        )  # fmt: skip
    else:
        norm_row(
            x_ptr, input_bias_ptr, residual_ptr, weight_ptr, bias_ptr, normed_ptr, sum_ptr, width,
            eps, True, BLOCK,
        )  # fmt: skip


@named(FusedResidualLayernormArguments)
def fused_residual_layernorm(a: FusedResidualLayernormArguments) -> tuple[Tensor, Tensor]:
    """The launcher; arguments are those of the op, already checked."""
    x, residual = a.x.contiguous(), a.residual.contiguous()
    shared = tuple(t if t is None else t.contiguous() for t in (a.weight, a.bias, a.input_bias))
    results = torch.empty_like(x), torch.empty_like(x)
    launch(fused_residual_layernorm_kernel, (x, residual), shared, results, a.eps)
    return results


def variants() -> list[Variant]:
    """Some of the programs that calls compile to, with both biases, in float32 and in 16 bits."""
    tensors = ("x", "residual", "weight", "bias", "input_bias", "normed", "sum")
    return [
        Variant(
            fused_residual_layernorm_kernel,
            dict.fromkeys((f"{name}_ptr" for name in tensors), p) | {"width": "i32", "eps": "fp32"},
            {"WIDE": options["WIDE"], "BLOCK": options["BLOCK"]},
            options["num_warps"],
        )
        for p in POINTERS[::2]
        for options in map(launch_options, (4096, 65_536))
    ]
