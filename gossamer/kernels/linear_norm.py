"""Triton kernel of gossamer.ops.linear_norm: what follows torch's GEMM, in one pass.

Not one kernel: a norm needs whole rows of the result, 4,096 columns say, while a tile that keeps
the tensor cores busy has 256. Tiles of whole rows would be 16 rows high (128 KiB of float32) and
read all weights once per 16 rows: 8 times the traffic of tiles of 128 rows.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from gossamer.kernels.arguments import LinearNormArguments, named
from gossamer.kernels.variants import MAX_ELEMENTS, Variant

MAX_BLOCK = 8192  # elements of a row that stay in registers; wider rows are read again


@triton.jit
def total_of(
    x_ptr, residual_ptr, bias_ptr, sum_ptr, start, columns, inside, HAS_BIAS: tl.constexpr
):
    """x + bias + residual, rounded as it is stored; returned in float32."""
    s = tl.load(x_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        s += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    s += tl.load(residual_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
    h = s.to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + start + columns, h, mask=inside)
    return h.to(tl.float32)


@triton.jit
def store_normed(
    h, scale, weight_ptr, norm_bias_ptr, normed_ptr, start, columns, inside, SHIFTED: tl.constexpr
):
    y = h * scale * tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if SHIFTED:
        y += tl.load(norm_bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed_ptr + start + columns, y.to(normed_ptr.dtype.element_ty), mask=inside)


@triton.jit
def linear_norm_kernel(
    x_ptr, residual_ptr, bias_ptr, weight_ptr, norm_bias_ptr, normed_ptr, sum_ptr, width, eps,
    LAYER: tl.constexpr, HAS_BIAS: tl.constexpr, SHIFTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per contiguous row of at most BLOCK elements, which stay in registers."""
    start = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    h = total_of(x_ptr, residual_ptr, bias_ptr, sum_ptr, start, columns, inside, HAS_BIAS)
    if LAYER:
        h = tl.where(inside, h - tl.sum(h) / width, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(h * h) / width + eps)
    store_normed(
        h, scale, weight_ptr, norm_bias_ptr, normed_ptr, start, columns, inside, SHIFTED
    )  # fmt: skip


@triton.jit
def linear_norm_kernel_wide(
    x_ptr, residual_ptr, bias_ptr, weight_ptr, norm_bias_ptr, normed_ptr, sum_ptr, width, eps,
    LAYER: tl.constexpr, HAS_BIAS: tl.constexpr, SHIFTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per contiguous row of any width, BLOCK elements at a time."""
    start = tl.program_id(0).to(tl.int64) * width
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        sums += total_of(x_ptr, residual_ptr, bias_ptr, sum_ptr, start, columns, inside, HAS_BIAS)
    mean = 0.0
    if LAYER:
        mean = tl.sum(sums) / width
    tl.debug_barrier()  # what follows may read what another thread of this program wrote
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        h = tl.load(sum_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        h = tl.where(inside, h - mean, 0.0)
        squares += h * h
    scale = 1.0 / tl.sqrt(tl.sum(squares) / width + eps)
    for base in range(0, width, BLOCK):
        columns = base + tl.arange(0, BLOCK)
        inside = columns < width
        h = tl.load(sum_ptr + start + columns, mask=inside, other=0.0).to(tl.float32) - mean
        store_normed(
            h, scale, weight_ptr, norm_bias_ptr, normed_ptr, start, columns, inside, SHIFTED
        )  # fmt: skip


def _launch_options(width: int) -> tuple[Any, dict[str, int]]:
    """The kernel for rows of this width and its launch options."""
    if width > MAX_BLOCK:
        return linear_norm_kernel_wide, {"BLOCK": 4096, "num_warps": 8}
    block = triton.next_power_of_2(width)
    return linear_norm_kernel, {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


@named(LinearNormArguments)
def linear_norm(a: LinearNormArguments) -> tuple[Tensor, Tensor]:
    """The launcher; arguments are those of the op, already checked."""
    width = a.weight.shape[0]
    made = F.linear(a.x, a.weight).contiguous()
    normed, total = torch.empty_like(made), torch.empty_like(made)
    rows = [t.view(-1, width) for t in (made, a.residual.contiguous(), normed, total)]
    given = (a.bias, a.norm_weight, a.norm_bias)
    shared = [made if t is None else t.contiguous() for t in given]
    kernel, options = _launch_options(width)
    with torch.cuda.device_of(a.x):
        for start in range(0, rows[0].shape[0], MAX_ELEMENTS):
            part = [t[start : start + MAX_ELEMENTS] for t in rows]
            kernel[(part[0].shape[0],)](
                *part[:2], *shared, *part[2:], width, a.eps,
                LAYER=a.norm == "layer", HAS_BIAS=a.bias is not None,
                SHIFTED=a.norm_bias is not None, **options,
            )  # fmt: skip
    return normed, total


def variants() -> list[Variant]:
    """Some of the programs that calls compile to."""
    tensors = ("x", "residual", "bias", "weight", "norm_bias", "normed", "sum")
    names = [f"{name}_ptr" for name in tensors]
    cases = (("*fp32", 4096, False), ("*bf16", 4096, True), ("*fp16", 1 << 14, True))
    found = []
    for pointer, width, layer in cases:
        kernel, options = _launch_options(width)
        constants = {"LAYER": layer, "HAS_BIAS": layer, "SHIFTED": layer, "BLOCK": options["BLOCK"]}
        types = dict.fromkeys(names, pointer) | {"width": "i32", "eps": "fp32"}
        found.append(Variant(kernel, types, constants, options["num_warps"]))
    return found
