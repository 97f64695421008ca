"""Triton kernels of gossamer.ops.linear_act, for what its CUDA kernel does not take."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.gemm import activate, add_columns, gemm_tile, store_tile, tile_place, whole
from gossamer.kernels.variants import Variant


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
    sums = gemm_tile(a_ptr, b_ptr, m, n, k, a_stride, b_stride, rows, columns, BM, BN, BK)
    sums = add_columns(sums, bias_ptr, columns, n, HAS_BIAS)
    store_tile(c_ptr, activate(sums, ACTIVATION), rows, columns, m, n)


@triton.jit
def linear_act_kernel_finish(
    x_ptr, bias_ptr, out_ptr, n, blocks,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """activation(x + bias) for BLOCK columns of a row of x [m, n], a GEMM in float32."""
    start = (tl.program_id(0) // blocks).to(tl.int64) * n
    columns = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(x_ptr + start + columns, mask=inside, other=0.0)
    if HAS_BIAS:
        x += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    y = activate(x, ACTIVATION).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + start + columns, y, mask=inside)


_INTERPRETED = triton.knobs.runtime.interpret
SKINNY = 64  # rows of one tile, for which the weights are streamed


def tile_options(m: int, element_size: int, is_whole: bool) -> dict[str, int]:
    """Tile and launch options for m rows. is_whole: see `whole`."""
    if m > SKINNY:
        if is_whole and element_size == 2:
            return {"BM": 128, "BN": 256, "BK": 64, "num_warps": 8, "num_stages": 3}
        return {"BM": 128, "BN": 128, "BK": 32, "num_warps": 8, "num_stages": 3}
    bm = max(16, triton.next_power_of_2(m))
    bk = (256 if is_whole or bm == 16 else 128) // element_size
    return {"BM": bm, "BN": 32, "BK": bk, "num_warps": 4, "num_stages": 4}


def _by_torch(x: Tensor, n: int) -> bool:
    """Whether torch's GEMM and a second pass are faster for x [m, k].

    Where tiles are few, cuBLAS splits k; for float32, which takes no tensor cores, it is faster.
    """
    m = x.shape[0]
    tiles = triton.cdiv(m, 128) * triton.cdiv(n, 256)
    return m > SKINNY and (x.dtype is torch.float32 or tiles < 128)


def wide_gemm(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in float32."""
    if x.dtype is torch.float32:
        return x @ weight.T
    if x.is_cuda:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    return x.float() @ weight.float().T


def multipliable(x: Tensor) -> Tensor:
    """x; as float32 where the interpreter would multiply the bits of bfloat16 as integers."""
    return x.float() if _INTERPRETED and x.dtype is torch.bfloat16 else x


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
    rows, weight, (n, k) = multipliable(rows_of(x)), multipliable(weight), weight.shape
    m, dense_bias = rows.shape[0], x if bias is None else bias.contiguous()
    shared = {"ACTIVATION": activation, "HAS_BIAS": bias is not None}
    with torch.cuda.device_of(x):
        if _by_torch(rows, n):
            block = min(1024, triton.next_power_of_2(n))
            blocks = triton.cdiv(n, block)
            linear_act_kernel_finish[(m * blocks,)](
                wide_gemm(rows, weight), dense_bias, out, n, blocks, BLOCK=block, **shared
            )
            return out
        is_whole = whole(n, k, rows.stride(0), weight.stride(0))
        options = tile_options(m, x.element_size(), is_whole)
        linear_act_kernel[(triton.cdiv(m, options["BM"]) * triton.cdiv(n, options["BN"]),)](
            *(rows, weight, dense_bias, out, m, n, k, rows.stride(0), weight.stride(0)),
            **shared,
            **options,
        )
    return out


def variants() -> list[Variant]:
    """Some of the programs that calls compile to: each type, skinny and not."""
    sizes = dict.fromkeys(("m", "n", "k", "a_stride", "b_stride"), "i32")
    names = ("a_ptr", "b_ptr", "bias_ptr", "c_ptr")
    cases = (("*fp32", 16, "mish"), ("*fp16", 64, "gelu"), ("*bf16", 1 << 14, "silu"))
    found = []
    for pointer, m, activation in cases:
        options = tile_options(m, 4 if pointer == "*fp32" else 2, is_whole=False)
        warps = options.pop("num_warps")
        del options["num_stages"]
        types = dict.fromkeys(names, pointer) | sizes
        constants = {"ACTIVATION": activation, "HAS_BIAS": True} | options
        found.append(Variant(linear_act_kernel, types, constants, warps))
    types = {"x_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16", "n": "i32", "blocks": "i32"}
    constants = {"ACTIVATION": "gelu", "HAS_BIAS": True, "BLOCK": 1024}
    return [*found, Variant(linear_act_kernel_finish, types, constants)]
