"""Triton kernel of gossamer.ops.linear_int8."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.arguments import Linear8BitArguments, named
from gossamer.kernels.gemm import add_columns, store_tile, tile_of, tile_place, whole
from gossamer.kernels.linear_act import SKINNY, rows_of
from gossamer.kernels.variants import Variant


@triton.jit
def linear_int8_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, bias_ptr, c_ptr, m, n, k, a_stride, b_stride,
    HAS_BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One program per tile of (a b^T) * a_scale * b_scale + bias."""
    row, column = tile_place(m, n, BM, BN, 8)
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    sums = tl.zeros([BM, BN], dtype=tl.int32)
    for start in range(0, k, BK):
        a = tile_of(a_ptr, rows, m, a_stride, start, k, BK)
        b = tile_of(b_ptr, columns, n, b_stride, start, k, BK)
        sums = tl.dot(a, b.T, sums, out_dtype=tl.int32)
    a_scale = tl.load(a_scale_ptr + rows, mask=rows < m, other=0.0)
    b_scale = tl.load(b_scale_ptr + columns, mask=columns < n, other=0.0)
    values = sums.to(tl.float32) * (a_scale[:, None] * b_scale[None, :])
    store_tile(c_ptr, add_columns(values, bias_ptr, columns, n, HAS_BIAS), rows, columns, m, n)


def _tile(m: int, is_whole: bool) -> dict[str, int]:
    """Tile and launch options for m rows. is_whole: see `whole`."""
    if m > SKINNY and is_whole:
        return {"BM": 128, "BN": 256, "BK": 128, "num_warps": 8, "num_stages": 3}
    if m > SKINNY:
        return {"BM": 64, "BN": 128, "BK": 64, "num_warps": 8, "num_stages": 3}
    bm = max(16, triton.next_power_of_2(m))
    bk = 256 if bm == 16 else 128 if is_whole else 64
    return {"BM": bm, "BN": 32, "BK": bk, "num_warps": 4, "num_stages": 4}


@named(Linear8BitArguments)
def linear_int8(a: Linear8BitArguments) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    out = a.x.new_empty((*a.x.shape[:-1], a.weight.shape[0]), dtype=a.dtype)
    if out.numel() == 0:
        return out
    rows, (n, k) = rows_of(a.x), a.weight.shape
    m = rows.shape[0]
    options = _tile(m, whole(n, k, rows.stride(0), a.weight.stride(0)))
    grid = (triton.cdiv(m, options["BM"]) * triton.cdiv(n, options["BN"]),)
    with torch.cuda.device_of(a.x):
        linear_int8_kernel[grid](
            *(rows, a.x_scale.contiguous(), a.weight, a.weight_scale.contiguous()),
            *(a.x_scale if a.bias is None else a.bias.contiguous(), out),
            *(m, n, k, rows.stride(0), a.weight.stride(0)),
            HAS_BIAS=a.bias is not None, **options,
        )  # fmt: skip
    return out


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: skinny and not."""
    sizes = dict.fromkeys(("m", "n", "k", "a_stride", "b_stride"), "i32")
    names = {"a_ptr": "*i8", "a_scale_ptr": "*fp32", "b_ptr": "*i8", "b_scale_ptr": "*fp32"}
    found = []
    for pointer, m in (("*bf16", 16), ("*fp16", 1 << 14)):
        options = _tile(m, is_whole=False)
        warps = options.pop("num_warps")
        del options["num_stages"]
        types = names | {"bias_ptr": pointer, "c_ptr": pointer} | sizes
        found.append(Variant(linear_int8_kernel, types, {"HAS_BIAS": True} | options, warps))
    return found
