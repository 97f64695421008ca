"""Triton kernel of gossamer.ops.fused_residual_rmsnorm."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import POINTERS, Variant

MAX_BLOCK = 8192  # 16 warps hold this much of a row in registers; wider rows loop


@triton.jit
def fused_residual_rmsnorm_kernel(
    x_ptr, residual_ptr, weight_ptr, normed_ptr, new_residual_ptr, width, eps, BLOCK: tl.constexpr
):
    """One program per contiguous row; loops when the row is wider than BLOCK."""
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for base in range(0, width, BLOCK):
        at = base + columns
        inside = at < width
        x = tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(residual_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
        h = x.to(new_residual_ptr.dtype.element_ty)
        tl.store(new_residual_ptr + start + at, h, mask=inside)
        squares += h.to(tl.float32) * h.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(squares) / width + eps)
    # The second pass reads what other threads of this program wrote.
    tl.debug_barrier()
    for base in range(0, width, BLOCK):
        at = base + columns
        inside = at < width
        h = tl.load(new_residual_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
        y = (h * scale * weight).to(normed_ptr.dtype.element_ty)
        tl.store(normed_ptr + start + at, y, mask=inside)


def _launch_options(width: int) -> dict[str, int]:
    block = min(triton.next_power_of_2(width), MAX_BLOCK)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


def fused_residual_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
    normed, new_residual = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    if x.numel() > 0:
        with torch.cuda.device_of(x):
            fused_residual_rmsnorm_kernel[(x.numel() // width,)](
                x, residual, weight, normed, new_residual, width, eps, **_launch_options(width)
            )
    return normed, new_residual


def variants() -> list[Variant]:
    pointers = ("x_ptr", "residual_ptr", "weight_ptr", "normed_ptr", "new_residual_ptr")
    return [
        Variant(
            fused_residual_rmsnorm_kernel,
            dict.fromkeys(pointers, p) | {"width": "i32", "eps": "fp32"},
            {"BLOCK": options["BLOCK"]},
            options["num_warps"],
        )
        for p in POINTERS
        for options in map(_launch_options, (1, 256, 4096, 65_536))
    ]
