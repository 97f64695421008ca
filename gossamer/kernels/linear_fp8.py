"""Triton kernel of gossamer.ops.linear_fp8.

Codes become float16 in registers, which has them all: Triton has float8 from sm_89 on only.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.arguments import Linear8BitArguments, named
from gossamer.kernels.gemm import add_columns, store_tile, tile_of, tile_place
from gossamer.kernels.linear_act import SKINNY, rows_of
from gossamer.kernels.variants import Variant

GROUP = 128  # elements along k, and rows of weight, that share a scale


@triton.jit
def decoded(codes):
    """float8_e4m3fn in bytes, times 2^-8, as float16: the exponent's bias is 8 more there."""
    bits = codes.to(tl.uint16)
    nan = (bits & 0x7F) == 0x7F
    wide = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return tl.where(nan, 0x7E00, wide).to(tl.float16, bitcast=True)


@triton.jit
def linear_fp8_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, bias_ptr, c_ptr, m, n, k, a_stride, b_stride,
    a_row, a_group, b_row, b_group,
    B_SHARED: tl.constexpr, GROUPS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One program per tile of (a * a_scale) (b * b_scale)^T + bias.

    a_row, a_group: from the scale of a row, and of 128 elements, to the next. b_row, b_group: the
    same for b, of which B_SHARED rows have one scale. GROUPS: whether scales differ along k.
    """
    row, column = tile_place(m, n, BM, BN, 8)
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    a_scales = a_scale_ptr + rows.to(tl.int64) * a_row
    b_scales = b_scale_ptr + (columns // B_SHARED).to(tl.int64) * b_row
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, k, BK):
        a = decoded(tile_of(a_ptr, rows, m, a_stride, start, k, BK))
        b = decoded(tile_of(b_ptr, columns, n, b_stride, start, k, BK))
        if GROUPS:
            group = start // 128
            a_scale = tl.load(a_scales + group * a_group, mask=rows < m, other=0.0)
            b_scale = tl.load(b_scales + group * b_group, mask=columns < n, other=0.0)
            sums += tl.dot(a, b.T) * (a_scale[:, None] * b_scale[None, :])
        else:
            sums = tl.dot(a, b.T, sums)
    sums *= 65536.0
    if not GROUPS:
        a_scale = tl.load(a_scales, mask=rows < m, other=0.0)
        b_scale = tl.load(b_scales, mask=columns < n, other=0.0)
        sums *= a_scale[:, None] * b_scale[None, :]
    store_tile(c_ptr, add_columns(sums, bias_ptr, columns, n, HAS_BIAS), rows, columns, m, n)


def _tile(m: int) -> dict[str, int]:
    """Tile and launch options for m rows: the largest that no odd size spills with."""
    if m > SKINNY:
        return {"BM": 64, "BN": 128, "BK": 32, "num_warps": 8, "num_stages": 3}
    if m > 16:
        return {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 4}
    return {"BM": 16, "BN": 32, "BK": GROUP, "num_warps": 4, "num_stages": 4}


def _by_torch(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype
) -> Tensor | None:
    """x weight^T for x [m, k] by cuBLAS, where it takes these arguments.

    At 8192 x 8192 on an H200, 16 to 256 rows take 26 to 28 us; in bfloat16 they take 36 to 47.
    """
    (m, k), n = x.shape, weight.shape[0]
    capability = torch.cuda.get_device_capability(x.device) if x.is_cuda else (0, 0)
    plain = x.is_contiguous() and weight.is_contiguous() and n % 16 == 0 and k % 16 == 0
    if capability < (9, 0) or dtype is not torch.bfloat16 or not plain:
        return None
    if x_scale.numel() == 1 and weight_scale.numel() == 1:
        scales = x_scale.reshape(()), weight_scale.reshape(())
        return torch._scaled_mm(x, weight.T, scales[0], scales[1], out_dtype=dtype)
    if x_scale.shape[-1] == 1 and tuple(weight_scale.shape) in ((n, 1), (1,)):
        a_scale = x_scale.reshape(-1, 1).expand(m, 1).contiguous()
        b_scale = weight_scale.reshape(1, -1).expand(1, n).contiguous()
        # As our kernel adds up; the other takes 41 us for 16 rows instead of 26.
        return torch._scaled_mm(x, weight.T, a_scale, b_scale, out_dtype=dtype, use_fast_accum=True)
    whole = k % GROUP == 0 and n % GROUP == 0 and m % 8 == 0 and capability == (9, 0)
    blocks = (m, k // GROUP), (n // GROUP, k // GROUP)
    shapes = tuple(x_scale.reshape(-1, x_scale.shape[-1]).shape), tuple(weight_scale.shape)
    if not whole or shapes != blocks or not _CUBLAS_HAS_BLOCKS:
        return None
    columns = x_scale.reshape(blocks[0]).T.contiguous().T  # one column after the other
    return torch._scaled_mm(x, weight.T, columns, weight_scale.contiguous().T, out_dtype=dtype)


_CUBLAS_HAS_BLOCKS = tuple(map(int, (torch.version.cuda or "0.0").split(".")[:2])) >= (12, 9)


@named(Linear8BitArguments)
def linear_fp8(a: Linear8BitArguments) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    out = a.x.new_empty((*a.x.shape[:-1], a.weight.shape[0]), dtype=a.dtype)
    if out.numel() == 0:
        return out
    (n, k), dense = a.weight.shape, rows_of(a.x)
    if a.bias is None:
        result = _by_torch(dense, a.x_scale, a.weight, a.weight_scale, a.dtype)
        if result is not None:
            return result.view(out.shape)
    rows, codes = dense.view(torch.uint8), a.weight.view(torch.uint8)
    m = rows.shape[0]
    a_parts, b_parts = a.x_scale.shape[-1], a.weight_scale.shape[-1]
    options = _tile(m)
    grid = (triton.cdiv(m, options["BM"]) * triton.cdiv(n, options["BN"]),)
    with torch.cuda.device_of(a.x):
        linear_fp8_kernel[grid](
            *(rows, a.x_scale.contiguous(), codes, a.weight_scale.contiguous()),
            *(a.x_scale if a.bias is None else a.bias.contiguous(), out),
            *(m, n, k, rows.stride(0), a.weight.stride(0)),
            *(0 if a.x_scale.numel() == 1 else a_parts, int(a_parts > 1)),
            *(0 if a.weight_scale.numel() == 1 else b_parts, int(b_parts > 1)),
            B_SHARED=1 if tuple(a.weight_scale.shape) in ((n, 1), (1,)) else GROUP,
            GROUPS=max(a_parts, b_parts) > 1, HAS_BIAS=a.bias is not None, **options,
        )  # fmt: skip
    return out


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: skinny and not."""
    sizes = dict.fromkeys(("m", "n", "k", "a_stride", "b_stride"), "i32")
    sizes |= dict.fromkeys(("a_row", "a_group", "b_row", "b_group"), "i32")
    names = {"a_ptr": "*u8", "a_scale_ptr": "*fp32", "b_ptr": "*u8", "b_scale_ptr": "*fp32"}
    found = []
    for pointer, m, groups in (("*bf16", 16, False), ("*fp16", 1 << 14, True)):
        options = _tile(m)
        warps = options.pop("num_warps")
        del options["num_stages"]
        types = names | {"bias_ptr": pointer, "c_ptr": pointer} | sizes
        shared = {"B_SHARED": GROUP if groups else 1, "GROUPS": groups, "HAS_BIAS": True}
        found.append(Variant(linear_fp8_kernel, types, shared | options, warps))
    return found
