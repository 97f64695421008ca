"""What the Triton kernels of rmsnorm, fused_residual_rmsnorm and fused_residual_layernorm share.

Optional pointers (input_bias_ptr, residual_ptr, sum_ptr, bias_ptr) are None where an op has none:
Triton makes another program for that.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import MAX_ELEMENTS

MAX_BLOCK = 8192  # 16 warps hold this much of a row in registers; wider rows loop


@triton.jit
def take(x_ptr, input_bias_ptr, residual_ptr, sum_ptr, start, columns, inside):
    """What is normed, in float32: x, or the sum with the others, rounded as it is stored."""
    h = tl.load(x_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        if input_bias_ptr is not None:
            h += tl.load(input_bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        h += tl.load(residual_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = h.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + start + columns, rounded, mask=inside)
        h = rounded.to(tl.float32)
    return h


@triton.jit
def give(h, scale, weight_ptr, bias_ptr, normed_ptr, start, columns, inside):
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    y = h * scale * weight
    if bias_ptr is not None:
        y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed_ptr + start + columns, y.to(normed_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_row(
    x_ptr, input_bias_ptr, residual_ptr, weight_ptr, bias_ptr, normed_ptr, sum_ptr, width, eps,
    LAYER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per contiguous row of at most BLOCK elements, which stay in registers."""
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    h = take(x_ptr, input_bias_ptr, residual_ptr, sum_ptr, start, columns, inside)
    if LAYER:
        h = tl.where(inside, h - tl.sum(h) / width, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(h * h) / width + eps)
    give(h, scale, weight_ptr, bias_ptr, normed_ptr, start, columns, inside)


@triton.jit
def norm_row_wide(
    x_ptr, input_bias_ptr, residual_ptr, weight_ptr, bias_ptr, normed_ptr, sum_ptr, width, eps,
    LAYER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per contiguous row of any width, in passes of BLOCK elements at a time."""
    start = tl.program_id(0).to(tl.int64) * width
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        h = take(x_ptr, input_bias_ptr, residual_ptr, sum_ptr, start, columns, inside)
        total += h if LAYER else h * h
    # Later passes may read what another thread of this program wrote.
    tl.debug_barrier()
    taken_ptr = x_ptr if sum_ptr is None else sum_ptr
    mean = 0.0
    if LAYER:
        mean = tl.sum(total) / width
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for base in range(0, width, BLOCK):
            columns = base + tl.arange(0, BLOCK)
            inside = columns < width
            h = tl.load(taken_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
            off = tl.where(inside, h - mean, 0.0)
            total += off * off
    scale = 1.0 / tl.sqrt(tl.sum(total) / width + eps)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        h = tl.load(taken_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        give(h - mean, scale, weight_ptr, bias_ptr, normed_ptr, start, columns, inside)


def launch_options(width: int) -> dict[str, Any]:
    """Launch options for rows of this width."""
    if width > MAX_BLOCK:
        return {"WIDE": True, "BLOCK": 4096, "num_warps": 8}
    block = triton.next_power_of_2(width)
    return {"WIDE": False, "BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


def launch(
    kernel: Any,
    rows: tuple[Tensor, ...],
    shared: tuple[Tensor | None, ...],
    results: tuple[Tensor, ...],
    eps: float,
) -> None:
    """`kernel(*rows, *shared, *results, width, eps)` over contiguous tensors of one shape.

    shared: what is one row for all.
    """
    width = rows[0].shape[-1]
    views = [t.view(-1, width) for t in (*rows, *results)]
    options = launch_options(width)
    with torch.cuda.device_of(rows[0]):
        for start in range(0, views[0].shape[0], MAX_ELEMENTS):
            parts = [t[start : start + MAX_ELEMENTS] for t in views]
            inputs, outputs = parts[: len(rows)], parts[len(rows) :]
            grid = (parts[0].shape[0],)
            kernel[grid](*inputs, *shared, *outputs, width, eps, **options)
