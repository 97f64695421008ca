"""Triton kernel of gossamer.ops.linear_act."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.products import activate, add_columns, product, store_tile, tile_place
from gossamer.kernels.variants import POINTERS, Variant


@triton.jit
def linear_act_kernel(
    a_ptr, b_ptr, bias_ptr, c_ptr, m, n, k, a_stride, b_stride,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One program per tile of activation(a b^T + bias)."""
    row, column = tile_place(m, n, BM, BN, 8)
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    sums = product(a_ptr, b_ptr, m, n, k, a_stride, b_stride, rows, columns, BM, BN, BK)
    sums = add_columns(sums, bias_ptr, columns, n, HAS_BIAS)
    store_tile(c_ptr, activate(sums, ACTIVATION), rows, columns, m, n)


def tile_options(m: int, n: int, element_size: int) -> dict[str, int]:
    """Tile and launch options for results [m, n]; a tile along k is 128 bytes wide."""
    bk = 128 // element_size
    if m <= 64:
        bm = max(16, triton.next_power_of_2(m))
        return {"BM": bm, "BN": 32, "BK": 2 * bk, "num_warps": 4, "num_stages": 4}
    if element_size == 4:  # multiplied one by one, in registers
        return {"BM": 64, "BN": 64, "BK": bk, "num_warps": 8, "num_stages": 3}
    if m * n < 132 * 128 * 128:
        return {"BM": 64, "BN": 128, "BK": bk, "num_warps": 4, "num_stages": 4}
    return {"BM": 128, "BN": 256, "BK": bk, "num_warps": 8, "num_stages": 3}


def rows_of(x: Tensor) -> Tensor:
    """x [..., k] as [m, k] whose rows are contiguous; a view where its strides allow that."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def linear_act(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "gelu"
) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    out = x.new_empty((*x.shape[:-1], weight.shape[0]))
    if out.numel() == 0:
        return out
    rows, (n, k) = rows_of(x), weight.shape
    m = rows.shape[0]
    options = tile_options(m, n, x.element_size())
    grid = (triton.cdiv(m, options["BM"]) * triton.cdiv(n, options["BN"]),)
    with torch.cuda.device_of(x):
        linear_act_kernel[grid](
            *(rows, weight, x if bias is None else bias.contiguous(), out),
            *(m, n, k, rows.stride(0), weight.stride(0)),
            ACTIVATION=activation, HAS_BIAS=bias is not None, **options,
        )  # fmt: skip
    return out


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: each type, few rows and many."""
    sizes = dict.fromkeys(("m", "n", "k", "a_stride", "b_stride"), "i32")
    names = ("a_ptr", "b_ptr", "bias_ptr", "c_ptr")
    found = []
    for pointer, m, activation in (("*fp32", 128, "mish"), ("*fp16", 16, "gelu"), ("*bf16", 1 << 14, "silu")):
        options = tile_options(m, m, 4 if pointer == "*fp32" else 2)
        warps = options.pop("num_warps")
        options.pop("num_stages")
        constants = {"ACTIVATION": activation, "HAS_BIAS": True} | options
        found.append(Variant(linear_act_kernel, dict.fromkeys(names, pointer) | sizes, constants, warps))
    return found
