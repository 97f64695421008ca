"""Triton kernels of gossamer.ops.linear_int4."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.gemm import add_columns, store_tile, tile_place
from gossamer.kernels.linear_act import SKINNY, rows_of
from gossamer.kernels.variants import Variant


@triton.jit
def _weights(
    code_ptr, scale_ptr, zero_ptr, columns, n, k, code_stride, scale_stride, zero_stride, group, at,
    BYTES: tl.constexpr,
):  # fmt: skip
    """BYTES bytes from `at` on of these rows: float32 weights of their low and of their high
    halves, and the places of the former in a row. The latter are 16 further on."""
    place = at + tl.arange(0, BYTES)
    low = place // 16 * 32 + place % 16
    row = columns[:, None].to(tl.int64)
    inside = (columns[:, None] < n) & (place[None, :] * 2 < k)
    codes = tl.load(code_ptr + row * code_stride + place[None, :], mask=inside, other=0)
    groups = (low // group)[None, :]  # a run of 32 is all in one group
    scale = tl.load(scale_ptr + row * scale_stride + groups, mask=inside, other=0.0).to(tl.float32)
    zero = tl.load(zero_ptr + row * zero_stride + groups, mask=inside, other=0.0).to(tl.float32)
    codes = codes.to(tl.int32)
    first = ((codes & 15).to(tl.float32) - zero) * scale
    second = ((codes >> 4).to(tl.float32) - zero) * scale
    return first, second, low


@triton.jit
def linear_int4_kernel(
    a_ptr, code_ptr, scale_ptr, zero_ptr, bias_ptr, c_ptr, m, n, k, group,
    a_stride, code_stride, scale_stride, zero_stride,
    HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """One program per tile of a b^T + bias. Low and high halves of bytes are a GEMM each."""
    row, column = tile_place(m, n, BM, BN, 8)
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    for at in range(0, k // 2, BYTES):
        first, second, low = _weights(
            code_ptr, scale_ptr, zero_ptr, columns, n, k, code_stride, scale_stride, zero_stride,
            group, at, BYTES,
        )  # fmt: skip
        inside = (rows[:, None] < m) & (low[None, :] < k)
        x = a_ptr + rows[:, None].to(tl.int64) * a_stride + low[None, :]
        type = a_ptr.dtype.element_ty
        a = tl.load(x, mask=inside, other=0.0)
        sums = tl.dot(a, tl.trans(first).to(type), sums, input_precision="ieee")
        a = tl.load(x + 16, mask=inside, other=0.0)
        sums = tl.dot(a, tl.trans(second).to(type), sums, input_precision="ieee")
    store_tile(c_ptr, add_columns(sums, bias_ptr, columns, n, HAS_BIAS), rows, columns, m, n)


@triton.jit
def linear_int4_kernel_expand(
    code_ptr, scale_ptr, zero_ptr, out_ptr, n, k, group, code_stride, scale_stride, zero_stride,
    BN: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """Weights as numbers, for torch's GEMM of many rows."""
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    first, second, low = _weights(
        code_ptr, scale_ptr, zero_ptr, columns, n, k, code_stride, scale_stride, zero_stride,
        group, tl.program_id(1) * BYTES, BYTES,
    )  # fmt: skip
    inside = (columns[:, None] < n) & (low[None, :] < k)
    out = out_ptr + columns[:, None].to(tl.int64) * k + low[None, :]
    tl.store(out, first.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out + 16, second.to(out_ptr.dtype.element_ty), mask=inside)


def _tile(m: int, element_size: int) -> dict[str, int]:
    """Tile and launch options for up to SKINNY rows: weights are streamed."""
    bm = max(16, triton.next_power_of_2(m))
    return {
        "BM": bm,
        "BN": 32,
        "BYTES": 32 if element_size == 2 else 16,
        "num_warps": 4,
        "num_stages": 4,
    }


_INTERPRETED = triton.knobs.runtime.interpret
_EXPAND = {"BN": 32, "BYTES": 64}


def linear_int4(
    x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    if _INTERPRETED and x.dtype is torch.bfloat16:  # whose bits it would multiply as integers
        wide = linear_int4(x.float(), codes, scale, zero, None if bias is None else bias.float())
        return wide.bfloat16()
    n, k = codes.shape[0], x.shape[-1]
    out = x.new_empty((*x.shape[:-1], n))
    if out.numel() == 0:
        return out
    rows = rows_of(x)
    m, group = rows.shape[0], k // scale.shape[1]
    strides = (codes.stride(0), scale.stride(0), zero.stride(0))
    with torch.cuda.device_of(x):
        if m > SKINNY:
            weight = x.new_empty((n, k))
            tiles = (triton.cdiv(n, _EXPAND["BN"]), triton.cdiv(k // 2, _EXPAND["BYTES"]))
            linear_int4_kernel_expand[tiles](
                codes, scale, zero, weight, n, k, group, *strides, **_EXPAND
            )
            return F.linear(x, weight, bias)
        options = _tile(m, x.element_size())
        grid = (triton.cdiv(m, options["BM"]) * triton.cdiv(n, options["BN"]),)
        linear_int4_kernel[grid](
            *(rows, codes, scale, zero, x if bias is None else bias.contiguous(), out),
            *(m, n, k, group, rows.stride(0), *strides),
            HAS_BIAS=bias is not None, **options,
        )  # fmt: skip
    return out


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: both kernels."""
    strides = dict.fromkeys(("code_stride", "scale_stride", "zero_stride"), "i32")
    sizes = dict.fromkeys(("n", "k", "group"), "i32") | strides
    names = {"code_ptr": "*u8", "scale_ptr": "*fp16", "zero_ptr": "*fp16"}
    options = _tile(16, 2)
    warps = options.pop("num_warps")
    del options["num_stages"]
    types = names | dict.fromkeys(("a_ptr", "bias_ptr", "c_ptr"), "*bf16") | sizes
    types |= {"m": "i32", "a_stride": "i32"}
    skinny = Variant(linear_int4_kernel, types, {"HAS_BIAS": True} | options, warps)
    expand = Variant(linear_int4_kernel_expand, names | {"out_ptr": "*bf16"} | sizes, _EXPAND, 4)
    return [skinny, expand]
