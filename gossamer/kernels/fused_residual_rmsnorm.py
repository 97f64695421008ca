"""Triton kernel of gossamer.ops.fused_residual_rmsnorm."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import MAX_ELEMENTS, POINTERS, Variant

MAX_BLOCK = 8192  # 16 warps hold this much of a row in registers; wider rows loop


@triton.jit
def add_residual(x_ptr, residual_ptr, new_residual_ptr, at, inside):
    """x + residual, rounded as it is stored; returned in float32."""
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
    h = x.to(new_residual_ptr.dtype.element_ty)
    tl.store(new_residual_ptr + at, h, mask=inside)
    return h.to(tl.float32)


@triton.jit
def scale_by(h, scale, weight_ptr, normed_ptr, start, columns, inside):
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    y = (h * scale * weight).to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + start + columns, y, mask=inside)


@triton.jit
def fused_residual_rmsnorm_kernel(
    x_ptr, residual_ptr, weight_ptr, normed_ptr, new_residual_ptr, width, eps, BLOCK: tl.constexpr
):
    """One program per contiguous row of at most BLOCK elements, which stay in registers."""
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    h = add_residual(x_ptr, residual_ptr, new_residual_ptr, start + columns, inside)
    scale = 1.0 / tl.sqrt(tl.sum(h * h) / width + eps)
    scale_by(h, scale, weight_ptr, normed_ptr, start, columns, inside)


@triton.jit
def fused_residual_rmsnorm_kernel_wide(
    x_ptr, residual_ptr, weight_ptr, normed_ptr, new_residual_ptr, width, eps, BLOCK: tl.constexpr
):
    """One program per contiguous row of any width, in two passes of BLOCK elements at a time."""
    start = tl.program_id(0).to(tl.int64) * width
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        h = add_residual(x_ptr, residual_ptr, new_residual_ptr, start + columns, inside)
        squares += h * h
    scale = 1.0 / tl.sqrt(tl.sum(squares) / width + eps)
    tl.debug_barrier()  # the second pass may read what another thread of this program wrote
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        h = tl.load(new_residual_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        scale_by(h, scale, weight_ptr, normed_ptr, start, columns, inside)


def _plan(width: int) -> tuple[Any, dict[str, int]]:
    """The kernel for rows of this width and its launch options."""
    if width > MAX_BLOCK:
        return fused_residual_rmsnorm_kernel_wide, {"BLOCK": 4096, "num_warps": 8}
    block = triton.next_power_of_2(width)
    return fused_residual_rmsnorm_kernel, {
        "BLOCK": block,
        "num_warps": min(max(block // 512, 1), 16),
    }


def fused_residual_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The launcher; arguments are those of the op, already checked."""
    x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
    normed, new_residual = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    kernel, options = _plan(width)
    rows = [t.view(-1, width) for t in (x, residual, normed, new_residual)]
    with torch.cuda.device_of(x):
        for start in range(0, rows[0].shape[0], MAX_ELEMENTS):
            parts = [t[start : start + MAX_ELEMENTS] for t in rows]
            kernel[(parts[0].shape[0],)](*parts[:2], weight, *parts[2:], width, eps, **options)
    return normed, new_residual


def variants() -> list[Variant]:
    """The programs that calls compile to."""
    pointers = ("x_ptr", "residual_ptr", "weight_ptr", "normed_ptr", "new_residual_ptr")
    return [
        Variant(
            kernel,
            dict.fromkeys(pointers, p) | {"width": "i32", "eps": "fp32"},
            {"BLOCK": options["BLOCK"]},
            options["num_warps"],
        )
        for p in POINTERS
        for kernel, options in map(_plan, (1, 256, 4096, 8192, 65_536))
    ]
