"""Triton kernel of gossamer.ops.element_wise_mul_add."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import MAX_ELEMENTS, POINTERS, Variant

BLOCK = 1024  # 2 to 4 16-byte accesses per thread at 4 warps


@triton.jit
def element_wise_mul_add_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr, numel, size1, size2,
    a0, a1, a2, b0, b1, b2, c0, c1, c2, out0, out1, out2,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Any strides: a0, a1, a2 are those of a, and so on. Fewer than 2^31 elements."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < numel
    row = index // size2
    i0 = (row // size1).to(tl.int64)
    i1 = (row % size1).to(tl.int64)
    i2 = (index % size2).to(tl.int64)
    a = tl.load(a_ptr + i0 * a0 + i1 * a1 + i2 * a2, mask=inside).to(tl.float32)
    b = tl.load(b_ptr + i0 * b0 + i1 * b1 + i2 * b2, mask=inside).to(tl.float32)
    c = tl.load(c_ptr + i0 * c0 + i1 * c1 + i2 * c2, mask=inside).to(tl.float32)
    out = out_ptr + i0 * out0 + i1 * out1 + i2 * out2
    tl.store(out, (a * b + c).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def mul_add_dense_kernel(a_ptr, b_ptr, c_ptr, out_ptr, numel, BLOCK: tl.constexpr):
    """Contiguous tensors of one shape."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < numel
    a = tl.load(a_ptr + offsets, mask=inside).to(tl.float32)
    b = tl.load(b_ptr + offsets, mask=inside).to(tl.float32)
    c = tl.load(c_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(out_ptr + offsets, (a * b + c).to(out_ptr.dtype.element_ty), mask=inside)


def element_wise_mul_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    a, b, c = torch.broadcast_tensors(a, b, c)
    out = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    with torch.cuda.device_of(out):
        if a.is_contiguous() and b.is_contiguous() and c.is_contiguous():
            grid = (triton.cdiv(out.numel(), BLOCK),)
            mul_add_dense_kernel[grid](a, b, c, out, out.numel(), BLOCK=BLOCK)
        else:
            _launch_strided(*(_three_dimensional(t) for t in (a, b, c, out)))
    return out


def _launch_strided(a: Tensor, b: Tensor, c: Tensor, out: Tensor) -> None:
    if out.numel() > MAX_ELEMENTS:
        dim = next(d for d in range(3) if out.shape[d] > 1)
        for part in zip(*(t.tensor_split(2, dim) for t in (a, b, c, out)), strict=True):
            _launch_strided(*part)
        return
    element_wise_mul_add_kernel[(triton.cdiv(out.numel(), BLOCK),)](
        a, b, c, out, out.numel(), out.shape[1], out.shape[2],
        *a.stride(), *b.stride(), *c.stride(), *out.stride(), BLOCK=BLOCK,
    )  # fmt: skip


def _three_dimensional(t: Tensor) -> Tensor:
    """A view as [all others, second to last, last]; a copy where there is no such view."""
    while t.dim() < 3:
        t = t.unsqueeze(0)
    return t.reshape(-1, *t.shape[-2:])


def variants() -> list[Variant]:
    """The programs that calls compile to; strides and sizes are 32 bits wide while they fit."""
    strides = [f"{t}{d}" for t in ("a", "b", "c", "out") for d in range(3)]
    found = []
    for p in POINTERS:
        pointers = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr", "out_ptr"), p)
        sizes = dict.fromkeys(("numel", "size1", "size2"), "i32")
        for width in ("i32", "i64"):
            strided = pointers | sizes | dict.fromkeys(strides, width)
            found.append(Variant(element_wise_mul_add_kernel, strided, {"BLOCK": BLOCK}))
            dense = pointers | {"numel": width}
            found.append(Variant(mul_add_dense_kernel, dense, {"BLOCK": BLOCK}))
    return found
