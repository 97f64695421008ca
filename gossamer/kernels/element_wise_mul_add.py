"""Triton kernel of gossamer.ops.element_wise_mul_add."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.variants import POINTERS, Variant

BLOCK = 1024  # 2 to 4 16-byte accesses per thread at 4 warps


@triton.jit
def load_broadcast(ptr, i0, i1, i2, s0, s1, s2, inside):
    return tl.load(ptr + i0 * s0 + i1 * s1 + i2 * s2, mask=inside).to(tl.float32)


@triton.jit
def element_wise_mul_add_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr, numel, size1, size2,
    a0, a1, a2, b0, b1, b2, c0, c1, c2,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out is contiguous [size0, size1, size2]; a0, a1, a2 are the strides of a, and so on."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < numel
    row = offsets // size2
    i2 = offsets - row * size2
    i0 = row // size1
    i1 = row - i0 * size1
    a = load_broadcast(a_ptr, i0, i1, i2, a0, a1, a2, inside)
    b = load_broadcast(b_ptr, i0, i1, i2, b0, b1, b2, inside)
    c = load_broadcast(c_ptr, i0, i1, i2, c0, c1, c2, inside)
    tl.store(out_ptr + offsets, (a * b + c).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def mul_add_dense_kernel(a_ptr, b_ptr, c_ptr, out_ptr, numel, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < numel
    a = tl.load(a_ptr + offsets, mask=inside).to(tl.float32)
    b = tl.load(b_ptr + offsets, mask=inside).to(tl.float32)
    c = tl.load(c_ptr + offsets, mask=inside).to(tl.float32)
    tl.store(out_ptr + offsets, (a * b + c).to(out_ptr.dtype.element_ty), mask=inside)


def element_wise_mul_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(a.shape, b.shape, c.shape)
    out = torch.empty(shape, dtype=a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    grid = (triton.cdiv(out.numel(), BLOCK),)
    with torch.cuda.device_of(out):
        if all(t.shape == shape and t.is_contiguous() for t in (a, b, c)):
            mul_add_dense_kernel[grid](a, b, c, out, out.numel(), BLOCK=BLOCK)
        else:
            a, b, c = (_three_dimensional(t.expand(shape)) for t in (a, b, c))
            size = _three_dimensional(out).shape
            element_wise_mul_add_kernel[grid](
                a, b, c, out, out.numel(), size[1], size[2],
                *a.stride(), *b.stride(), *c.stride(), BLOCK=BLOCK,
            )  # fmt: skip
    return out


def _three_dimensional(t: Tensor) -> Tensor:
    """A view as [everything else, second to last, last]; a copy where strides do not allow a view."""
    while t.dim() < 3:
        t = t.unsqueeze(0)
    return t.reshape(-1, *t.shape[-2:])


def variants() -> list[Variant]:
    strides = [f"{t}{d}" for t in "abc" for d in range(3)]
    variants = []
    for p in POINTERS:
        pointers = {"a_ptr": p, "b_ptr": p, "c_ptr": p, "out_ptr": p, "numel": "i64"}
        sizes = dict.fromkeys(["size1", "size2", *strides], "i64")
        variants.append(Variant(element_wise_mul_add_kernel, pointers | sizes, {"BLOCK": BLOCK}))
        variants.append(Variant(mul_add_dense_kernel, pointers, {"BLOCK": BLOCK}))
    return variants
