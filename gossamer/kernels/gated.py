"""What the Triton kernels of silu_mul and gelu_mul share."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.activations import activate

BLOCK = 1024  # 1 or 2 16-byte accesses to each half per thread at 4 warps


@triton.jit
def gated(x_ptr, out_ptr, width, row_stride, blocks, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """One program per BLOCK outputs of a row; `blocks` of them per row of `width` outputs."""
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    columns = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(x_ptr + row * row_stride + columns, mask=inside).to(tl.float32)
    up = tl.load(x_ptr + row * row_stride + width + columns, mask=inside).to(tl.float32)
    y = activate(gate, ACTIVATION) * up
    tl.store(out_ptr + row * width + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


def launch(kernel: Any, x: Tensor, **options: object) -> Tensor:
    """`kernel` over the rows of x [..., 2n]; the result [..., n]."""
    width = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    rows = x.reshape(-1, 2 * width)  # a view where the rows lie equally far apart
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    blocks = triton.cdiv(width, BLOCK)
    with torch.cuda.device_of(x):
        grid = (rows.shape[0] * blocks,)
        kernel[grid](rows, out, width, rows.stride(0), blocks, BLOCK=BLOCK, **options)
    return out
