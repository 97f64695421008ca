"""Triton kernel of gossamer.ops.quantize_int8."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import MAX_ELEMENTS, POINTERS, Variant

MAX_BLOCK = 8192  # elements of a row that stay in registers; wider rows are read twice


@triton.jit
def scale_of(largest, LIMIT: tl.constexpr):
    """largest / LIMIT, 1 for 0."""
    return tl.where(largest == 0.0, 1.0, tl.div_rn(largest, LIMIT))


@triton.jit
def magnitude(x):
    """|x| as an integer: its bits, whose order is the same. Infinity and NaN are the largest.

    Two 16-bit numbers are compared at once so, and no sum has to look for what is not finite.
    """
    if x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        bits = x.to(tl.int16, bitcast=True) & 0x7FFF
    return bits


@triton.jit
def number(bits, dtype: tl.constexpr):
    """What `magnitude` made bits of, in float32."""
    if dtype == tl.float32:
        x = bits.to(tl.float32, bitcast=True)
    else:
        x = bits.to(tl.int16).to(dtype, bitcast=True).to(tl.float32)
    return x


@triton.jit
def code_of(x):
    """x, |x| up to 127, rounded to nearest even: it is then in the lowest bits of 1.5 * 2^23 + x.

    x is a product that must have been rounded itself: launch with enable_fp_fusion=False.
    """
    return (x + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def quantize_int8_kernel(x_ptr, q_ptr, scale_ptr, width, x_stride, BLOCK: tl.constexpr):
    """One program per row of at most BLOCK elements, which stay in registers."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0)
    scale = scale_of(number(tl.max(magnitude(x)), x.dtype), 127.0)
    q = code_of(x.to(tl.float32) * tl.div_rn(1.0, scale))
    tl.store(q_ptr + row * width + columns, q, mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def quantize_int8_kernel_wide(x_ptr, q_ptr, scale_ptr, width, x_stride, BLOCK: tl.constexpr):
    """One program per row of any width, in two passes of BLOCK elements at a time."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros([BLOCK], dtype=tl.int32)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + columns, mask=columns < width, other=0.0)
        largest = tl.maximum(largest, magnitude(x).to(tl.int32))
    scale = scale_of(number(tl.max(largest), x_ptr.dtype.element_ty), 127.0)
    inverse = tl.div_rn(1.0, scale)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(q_ptr + row * width + columns, code_of(x * inverse), mask=inside)
    tl.store(scale_ptr + row, scale)


def _plan(width: int) -> tuple[Any, dict[str, int]]:
    """The kernel for rows of this width and its launch options."""
    if width > MAX_BLOCK:
        return quantize_int8_kernel_wide, {"BLOCK": 4096, "num_warps": 8}
    block = triton.next_power_of_2(width)
    # 16,384 x 8192 in bfloat16 on an H200: 93 us with 4 or 8 warps, 97 with 16 and 128 with 32.
    return quantize_int8_kernel, {"BLOCK": block, "num_warps": min(max(block // 1024, 1), 8)}


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """The launcher; arguments are those of the op, already checked."""
    q = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return q, scale.fill_(1.0)
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    parts = rows, q.view(-1, width), scale.view(-1)
    kernel, options = _plan(width)
    with torch.cuda.device_of(x):
        for start in range(0, rows.shape[0], MAX_ELEMENTS):
            part = [t[start : start + MAX_ELEMENTS] for t in parts]
            kernel[(part[0].shape[0],)](
                *part, width, rows.stride(0), **options, enable_fp_fusion=False
            )
    return q, scale


def variants() -> list[Variant]:
    """The programs that calls compile to."""
    pointers = {"q_ptr": "*i8", "scale_ptr": "*fp32", "width": "i32", "x_stride": "i32"}
    return [
        Variant(kernel, {"x_ptr": p} | pointers, {"BLOCK": options["BLOCK"]}, options["num_warps"])
        for p, width in (*((p, 4096) for p in POINTERS), ("*bf16", 1 << 14))
        for kernel, options in [_plan(width)]
    ]
