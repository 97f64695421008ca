"""Triton kernels of gossamer.ops.quantize_fp8.

Triton has the type from sm_89 on only (NATIVE). Before that, and in the interpreter, numbers are
encoded as bytes by hand, which gives the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.quantize_int8 import scale_of
from gossamer.kernels.variants import POINTERS, Variant

GROUP = 128  # elements that share a scale, and rows of a block
BLOCK_ROWS = 32  # rows of a block that are in registers at a time
MAX_BLOCK = 8192  # elements of a row that stay in registers
WIDTH = 4096  # elements of a row, or of the whole tensor, that one program reads at a time


@triton.jit
def encode(x, NATIVE: tl.constexpr):
    """Bytes of float8_e4m3fn, rounded to nearest even; |x| up to 448 and a rounding error."""
    if NATIVE:
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6, steps of 2^-9: the sum with 2^14 rounds to them.
    steps = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, steps, tl.minimum(normal, 0x7E))
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def quantize_fp8_kernel(
    x_ptr, q_ptr, scale_ptr, width, x_stride, BLOCK: tl.constexpr, NATIVE: tl.constexpr
):
    """One program per row of at most BLOCK elements, one scale for it.

    Here and below, x * 0 is 0, or NaN where x is not finite; the scale shall be NaN then.
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    scale = scale_of(tl.max(tl.abs(x)), 448.0) + tl.sum(x * 0.0)
    tl.store(q_ptr + row * width + columns, encode(x * tl.div_rn(1.0, scale), NATIVE), mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def quantize_fp8_kernel_wide(
    x_ptr, q_ptr, scale_ptr, width, x_stride, BLOCK: tl.constexpr, NATIVE: tl.constexpr
):
    """One program per row of any width, in two passes of BLOCK elements at a time."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros([BLOCK], dtype=tl.float32)
    poison = tl.zeros([BLOCK], dtype=tl.float32)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + columns, mask=columns < width, other=0.0)
        largest = tl.maximum(largest, tl.abs(x.to(tl.float32)))
        poison += x.to(tl.float32) * 0.0
    scale = scale_of(tl.max(largest), 448.0) + tl.sum(poison)
    inverse = tl.div_rn(1.0, scale)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(q_ptr + row * width + columns, encode(x * inverse, NATIVE), mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def quantize_fp8_kernel_groups(
    x_ptr, q_ptr, scale_ptr, width, x_stride, groups, BG: tl.constexpr, NATIVE: tl.constexpr
):
    """BG groups of 128 elements of a row, a scale for each."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BG + tl.arange(0, BG)
    columns = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    scale = scale_of(tl.max(tl.abs(x), axis=1), 448.0) + tl.sum(x * 0.0, axis=1)
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    tl.store(q_ptr + row * width + columns, encode(x * inverse[:, None], NATIVE), mask=inside)
    tl.store(scale_ptr + row * groups + group, scale, mask=group < groups)


@triton.jit
def quantize_fp8_kernel_blocks(
    x_ptr, q_ptr, scale_ptr, rows, width, x_stride, groups, BM: tl.constexpr, NATIVE: tl.constexpr
):
    """A block of 128 x 128 elements, BM rows at a time; the second pass finds them in the cache."""
    first = tl.program_id(0).to(tl.int64) * 128
    columns = tl.program_id(1) * 128 + tl.arange(0, 128)[None, :]
    largest = tl.zeros([BM, 128], dtype=tl.float32)
    poison = tl.zeros([BM, 128], dtype=tl.float32)
    for base in range(0, 128, BM):
        row = first + base + tl.arange(0, BM)[:, None]
        inside = (row < rows) & (columns < width)
        x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))
        poison += x * 0.0
    scale = scale_of(tl.max(largest), 448.0) + tl.sum(poison)
    inverse = tl.div_rn(1.0, scale)
    for base in range(0, 128, BM):
        row = first + base + tl.arange(0, BM)[:, None]
        inside = (row < rows) & (columns < width)
        x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(q_ptr + row * width + columns, encode(x * inverse, NATIVE), mask=inside)
    tl.store(scale_ptr + tl.program_id(0).to(tl.int64) * groups + tl.program_id(1), scale)


@triton.jit
def quantize_fp8_kernel_largest(x_ptr, bits_ptr, width, x_stride, BLOCK: tl.constexpr):
    """The largest magnitude of a row as an integer, whose order is the same; NaN is the largest."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.zeros([BLOCK], dtype=tl.int32)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + columns, mask=columns < width, other=0.0)
        magnitude = tl.abs(x.to(tl.float32)).to(tl.int32, bitcast=True)
        largest = tl.maximum(largest, magnitude)
    tl.atomic_max(bits_ptr, tl.max(largest))


@triton.jit
def quantize_fp8_kernel_scaled(
    x_ptr, q_ptr, bits_ptr, scale_ptr, width, x_stride, BLOCK: tl.constexpr, NATIVE: tl.constexpr
):
    """A row by one scale for all of them, from what quantize_fp8_kernel_largest found.

    scale_ptr [rows or 1]: the scale goes there once, at row 0.
    """
    row = tl.program_id(0).to(tl.int64)
    largest = tl.load(bits_ptr).to(tl.float32, bitcast=True)
    scale = scale_of(largest, 448.0) + largest * 0.0
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(
            q_ptr + row * width + columns, encode(x * tl.div_rn(1.0, scale), NATIVE), mask=inside
        )
    if row == 0:
        tl.store(scale_ptr, scale)


def _plan(width: int) -> tuple[Any, dict[str, int]]:
    """The kernel for one scale per row of this width, and its launch options."""
    if width > MAX_BLOCK:
        return quantize_fp8_kernel_wide, {"BLOCK": WIDTH, "num_warps": 8}
    block = triton.next_power_of_2(width)
    return quantize_fp8_kernel, {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


def _native(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 9)


def _tensor(rows: Tensor, q: Tensor, scale: Tensor) -> None:
    bits = torch.zeros(1, dtype=torch.int32, device=rows.device)
    grid, width = (rows.shape[0],), rows.shape[1]
    options = {"BLOCK": min(triton.next_power_of_2(width), WIDTH), "num_warps": 8}
    quantize_fp8_kernel_largest[grid](rows, bits, width, rows.stride(0), **options)
    quantize_fp8_kernel_scaled[grid](
        rows, q, bits, scale, width, rows.stride(0), NATIVE=_native(rows), **options
    )


def _rows(rows: Tensor, q: Tensor, scale: Tensor) -> None:
    m, width = rows.shape
    kernel, options = _plan(width)
    kernel[(m,)](rows, q, scale, width, rows.stride(0), NATIVE=_native(rows), **options)


def _groups(rows: Tensor, q: Tensor, scale: Tensor) -> None:
    m, width = rows.shape
    groups = triton.cdiv(width, GROUP)
    bg = min(triton.next_power_of_2(groups), WIDTH // GROUP)
    quantize_fp8_kernel_groups[(m, triton.cdiv(groups, bg))](
        *(rows, q, scale, width, rows.stride(0), groups), BG=bg, NATIVE=_native(rows), num_warps=8
    )


def _blocks(rows: Tensor, q: Tensor, scale: Tensor) -> None:
    m, width = rows.shape
    groups = triton.cdiv(width, GROUP)
    quantize_fp8_kernel_blocks[(triton.cdiv(m, GROUP), groups)](
        *(rows, q, scale, m, width, rows.stride(0), groups),
        BM=BLOCK_ROWS, NATIVE=_native(rows), num_warps=8,
    )  # fmt: skip


def _shape(x: Tensor, granularity: str) -> tuple[int, ...]:
    """Of the scales."""
    groups = triton.cdiv(x.shape[-1], GROUP)
    if granularity == "tensor":
        return (1,)
    if granularity == "block":
        return triton.cdiv(x.shape[0], GROUP), groups
    return *x.shape[:-1], groups if granularity == "group" else 1


_WAYS = {"tensor": _tensor, "row": _rows, "group": _groups, "block": _blocks}


def quantize_fp8(x: Tensor, granularity: str = "row") -> tuple[Tensor, Tensor]:
    """The launcher; arguments are those of the op, already checked."""
    q = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(_shape(x, granularity), dtype=torch.float32, device=x.device)
    if x.numel() == 0:
        return q, scale.fill_(1.0)
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    with torch.cuda.device_of(x):
        _WAYS[granularity](rows, q.view(rows.shape).view(torch.uint8), scale)
    return q, scale


def variants() -> list[Variant]:
    """Some of the programs that calls compile to; none with NATIVE, which sm_80 has not."""
    sizes = {"width": "i32", "x_stride": "i32"}
    outputs = {"q_ptr": "*u8", "scale_ptr": "*fp32"}
    found = []
    for pointer, width in ((POINTERS[0], 4096), (POINTERS[2], 4096), (POINTERS[1], 1 << 14)):
        kernel, options = _plan(width)
        constants = {"BLOCK": options["BLOCK"], "NATIVE": False}
        types = {"x_ptr": pointer} | outputs | sizes
        found.append(Variant(kernel, types, constants, options["num_warps"]))
    types = {"x_ptr": "*bf16"} | outputs | sizes | {"groups": "i32"}
    constants = {"BG": WIDTH // GROUP, "NATIVE": False}
    found.append(Variant(quantize_fp8_kernel_groups, types, constants, 8))
    constants = {"BM": BLOCK_ROWS, "NATIVE": False}
    found.append(Variant(quantize_fp8_kernel_blocks, types | {"rows": "i32"}, constants, 8))
    types = {"x_ptr": "*bf16", "bits_ptr": "*i32"} | sizes
    block = {"BLOCK": WIDTH}
    found.append(Variant(quantize_fp8_kernel_largest, types, block, 8))
    found.append(Variant(quantize_fp8_kernel_scaled, types | outputs, block | {"NATIVE": False}, 8))
    return found
