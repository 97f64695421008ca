"""Triton kernels of gossamer.ops.scaled_softmax."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import MAX_ELEMENTS, POINTERS, Variant

MAX_BLOCK = 32_768  # 32 warps hold this much of a row in registers; wider rows are cut into parts
PART = 8192
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def scaled_softmax_kernel(x_ptr, out_ptr, width, row_stride, scale, BLOCK: tl.constexpr):
    """One program per row of at most BLOCK elements, which stay in registers."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row * row_stride + columns, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(inside, x * scale, float("-inf"))
    y = tl.exp2((x - tl.max(x, 0)) * LOG2_E)
    y = y * (1.0 / tl.sum(y, 0))
    tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def scaled_softmax_kernel_parts(
    x_ptr, tops_ptr, sums_ptr, width, row_stride, parts, scale, PART: tl.constexpr
):
    """Maximum and sum of exponentials of PART elements of a row."""
    program = tl.program_id(0)
    row = (program // parts).to(tl.int64)
    columns = (program % parts) * PART + tl.arange(0, PART)
    inside = columns < width
    x = tl.load(x_ptr + row * row_stride + columns, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(inside, x * scale, float("-inf"))
    top = tl.max(x, 0)
    # A part of -inf alone counts for nothing: its exponentials are 0, not those of inf - inf.
    base = tl.where(top == float("-inf"), 0.0, top)
    tl.store(tops_ptr + program, top)
    tl.store(sums_ptr + program, tl.sum(tl.exp2((x - base) * LOG2_E), 0))


@triton.jit
def scaled_softmax_kernel_apply(
    x_ptr, tops_ptr, sums_ptr, out_ptr, width, row_stride, parts, scale,
    PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """PART elements of a row, by the maxima and sums of all its parts, at most PARTS."""
    program = tl.program_id(0)
    row = (program // parts).to(tl.int64)
    part = tl.arange(0, PARTS)
    known = part < parts
    tops = tl.load(tops_ptr + row * parts + part, mask=known, other=float("-inf"))
    sums = tl.load(sums_ptr + row * parts + part, mask=known, other=0.0)
    top = tl.max(tops, 0)
    # Where all is -inf, inf - inf makes the row NaN, as it should.
    total = tl.sum(sums * tl.exp2((tops - top) * LOG2_E), 0)
    columns = (program % parts) * PART + tl.arange(0, PART)
    inside = columns < width
    x = tl.load(x_ptr + row * row_stride + columns, mask=inside, other=0.0).to(tl.float32)
    y = tl.exp2((x * scale - top) * LOG2_E) * (1.0 / total)
    tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


def _warps(block: int) -> int:
    return min(max(block // 512, 1), 32)


def scaled_softmax(x: Tensor, scale: float = 1.0) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    width = x.shape[-1]
    rows = x.reshape(-1, width)  # a view where the rows lie equally far apart
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    outs = out.view(-1, width)
    step = MAX_ELEMENTS // triton.cdiv(width, PART)  # programs of a launch
    with torch.cuda.device_of(x):
        for start in range(0, rows.shape[0], step):
            _launch(rows[start : start + step], outs[start : start + step], scale)
    return out


def _launch(x: Tensor, out: Tensor, scale: float) -> None:
    count, width = x.shape
    if width <= MAX_BLOCK:
        block = triton.next_power_of_2(width)
        scaled_softmax_kernel[(count,)](
            x, out, width, x.stride(0), scale, BLOCK=block, num_warps=_warps(block)
        )
        return
    parts = triton.cdiv(width, PART)
    tops, sums = torch.empty(2, count, parts, dtype=torch.float32, device=x.device)
    grid, warps = (count * parts,), _warps(PART)
    scaled_softmax_kernel_parts[grid](
        x, tops, sums, width, x.stride(0), parts, scale, PART=PART, num_warps=warps
    )
    scaled_softmax_kernel_apply[grid](
        x, tops, sums, out, width, x.stride(0), parts, scale,
        PARTS=triton.next_power_of_2(parts), PART=PART, num_warps=warps,
    )  # fmt: skip


def variants() -> list[Variant]:
    """Some of the programs that calls compile to."""
    sizes = {"width": "i32", "row_stride": "i32", "scale": "fp32"}
    found = [
        Variant(
            scaled_softmax_kernel,
            {"x_ptr": p, "out_ptr": p} | sizes,
            {"BLOCK": block},
            _warps(block),
        )
        for p, block in zip(POINTERS, (1024, 4096, MAX_BLOCK), strict=True)
    ]
    scratch = {"tops_ptr": "*fp32", "sums_ptr": "*fp32", "parts": "i32"}
    p = POINTERS[-1]
    found.append(
        Variant(
            scaled_softmax_kernel_parts,
            {"x_ptr": p} | scratch | sizes,
            {"PART": PART},
            _warps(PART),
        )
    )
    found.append(
        Variant(
            scaled_softmax_kernel_apply,
            {"x_ptr": p, "out_ptr": p} | scratch | sizes,
            {"PARTS": 16, "PART": PART},
            _warps(PART),
        )
    )
    return found
