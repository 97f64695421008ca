"""Triton kernels of gossamer.ops.gated_mlp.

Of skinny GEMMs reading the weights once is all that takes time: one launch for gate, up and the
activation, one for down, whose reading is split along its rows so that every SM has some.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from gossamer.kernels.arguments import GatedMlpArguments, named
from gossamer.kernels.gemm import activate, add_columns, store_tile, tile_of, whole
from gossamer.kernels.linear_act import SKINNY, multipliable, rows_of
from gossamer.kernels.variants import Variant

SPLITS = 4  # of the rows of down^T: 4 x 64 programs for 4096 columns


def _options(bm: int, is_whole: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Tile and launch options of both kernels for at most bm rows. is_whole: see `whole`.

    On an H200 at 4096 x 14336, the best of 12 choices each: 60 to 64 us (3.9 to 3.7 TB/s) and 32 to
    34 us for 1 to 64 rows, where cuBLAS takes 58 to 65 and 34 to 37.
    """
    up = {"BN": 32, "BK": 128, "num_stages": 3, "num_warps": 4}
    down = {"BN": 64, "BK": 128, "num_stages": 3, "num_warps": 4}
    if bm > 16 and not is_whole:
        up |= {"BK": 64, "num_stages": 5}
        down |= {"BK": 64, "num_stages": 5, "num_warps": 8}
    return up, down


@triton.jit
def gated_mlp_kernel(
    x_ptr, weight_ptr, up_ptr, bias_ptr, h_ptr, counters_ptr,
    m, inter, k, x_stride, weight_stride, counters,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """h = activation(x gate^T + bias) * (x up^T + bias) for BN columns; also sets counters to 0."""
    if tl.program_id(0) == 0:
        at = tl.arange(0, BC)
        tl.store(counters_ptr + at, tl.zeros([BC], dtype=tl.int32), mask=at < counters)
    rows = tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    gate = tl.zeros([BM, BN], dtype=tl.float32)
    up = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, k, BK):
        x = tile_of(x_ptr, rows, m, x_stride, start, k, BK)
        w = tile_of(weight_ptr, columns, inter, weight_stride, start, k, BK)
        gate = tl.dot(x, w.T, gate, input_precision="ieee")
        w = tile_of(up_ptr, columns, inter, weight_stride, start, k, BK)
        up = tl.dot(x, w.T, up, input_precision="ieee")
    gate = add_columns(gate, bias_ptr, columns, inter, HAS_BIAS)
    up = add_columns(up, bias_ptr + inter, columns, inter, HAS_BIAS)
    store_tile(h_ptr, activate(gate, ACTIVATION) * up, rows, columns, m, inter)


@triton.jit
def gated_mlp_kernel_down(
    h_ptr, weight_ptr, bias_ptr, out_ptr, parts_ptr, counters_ptr,
    m, n, inter, weight_stride, share,
    HAS_BIAS: tl.constexpr, SPLITS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = h down^T + bias for BN columns, from `share` of the rows of down^T.

    The last program of a column to arrive adds the parts up, always in the same order.
    """
    rows = tl.arange(0, BM)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    split = tl.program_id(1)
    end = min(inter, (split + 1) * share)
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(split * share, end, BK):  # share is a multiple of BK
        h = tile_of(h_ptr, rows, m, inter, start, inter, BK)
        w = tile_of(weight_ptr, columns, n, weight_stride, start, inter, BK)
        sums = tl.dot(h, w.T, sums, input_precision="ieee")
    if SPLITS > 1:
        store_tile(parts_ptr + split * m * n, sums, rows, columns, m, n)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters_ptr + tl.program_id(0), 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            tl.debug_barrier()
            inside = (rows[:, None] < m) & (columns[None, :] < n)
            at = rows[:, None] * n + columns[None, :]
            total = tl.zeros([BM, BN], dtype=tl.float32)
            for i in range(SPLITS):
                total += tl.load(
                    parts_ptr + i * m * n + at, mask=inside, other=0.0, cache_modifier=".cg"
                )
            total = add_columns(total, bias_ptr, columns, n, HAS_BIAS)
            store_tile(out_ptr, total, rows, columns, m, n)
    else:
        sums = add_columns(sums, bias_ptr, columns, n, HAS_BIAS)
        store_tile(out_ptr, sums, rows, columns, m, n)


@triton.jit
def gated_mlp_kernel_activate(x_ptr, width, blocks, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """gate = activation(gate) * up for BLOCK columns of rows [gate, up] of 2 `width` elements."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(x_ptr + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    h = activate(gate, ACTIVATION) * up
    tl.store(x_ptr + row * 2 * width + columns, h.to(x_ptr.dtype.element_ty), mask=inside)


def stream(a: GatedMlpArguments) -> Tensor:
    """x [at most SKINNY rows, k] through gate, up, activation and down: weights are read once."""
    m, k = a.x.shape
    inter, n = a.gate_up.shape[0] // 2, a.down.shape[0]
    bm = 16 if m <= 16 else 64  # 32 takes longer than 64
    out = a.x.new_empty((m, n))
    x, gate_up, down = multipliable(a.x), multipliable(a.gate_up), multipliable(a.down)
    h, bias = x.new_empty((m, inter)), a.gate_up_bias
    up, last = _options(bm, whole(k, inter, n, x.stride(0), gate_up.stride(0), down.stride(0)))
    tiles = triton.cdiv(n, last["BN"])
    counters = torch.empty(tiles, dtype=torch.int32, device=x.device)
    parts = torch.empty(SPLITS, m, n, dtype=torch.float32, device=x.device)
    share = triton.cdiv(triton.cdiv(inter, SPLITS), last["BK"]) * last["BK"]
    gated_mlp_kernel[(triton.cdiv(inter, up["BN"]),)](
        *(x, gate_up, gate_up[inter:], x if bias is None else bias, h, counters),
        *(m, inter, k, x.stride(0), gate_up.stride(0), tiles),
        ACTIVATION=a.activation, HAS_BIAS=bias is not None,
        BM=bm, BC=triton.next_power_of_2(tiles), **up,
    )  # fmt: skip
    gated_mlp_kernel_down[(tiles, SPLITS)](
        *(h, down, x if a.down_bias is None else a.down_bias, out, parts, counters),
        *(m, n, inter, down.stride(0), share),
        HAS_BIAS=a.down_bias is not None, SPLITS=SPLITS, BM=bm, **last,
    )  # fmt: skip
    return out


def multiply(a: GatedMlpArguments) -> Tensor:
    """x [many rows, k]: torch's GEMMs, and one pass between them."""
    both = F.linear(a.x, a.gate_up, a.gate_up_bias).contiguous()
    m, width = both.shape[0], a.gate_up.shape[0] // 2
    block = min(1024, triton.next_power_of_2(width))
    blocks = triton.cdiv(width, block)
    gated_mlp_kernel_activate[(m * blocks,)](
        both, width, blocks, ACTIVATION=a.activation, BLOCK=block
    )
    return F.linear(both[:, :width], a.down, a.down_bias)  # in place: a third less memory


@named(GatedMlpArguments)
def gated_mlp(a: GatedMlpArguments) -> Tensor:
    """The launcher; arguments are those of the op, already checked."""
    out_shape = (*a.x.shape[:-1], a.down.shape[0])
    if a.x.numel() == 0 or a.down.shape[0] == 0:
        return a.x.new_empty(out_shape)
    up_bias, down_bias = (
        None if b is None else b.contiguous() for b in (a.gate_up_bias, a.down_bias)
    )
    rows = a._replace(x=rows_of(a.x), gate_up_bias=up_bias, down_bias=down_bias)
    call = stream if rows.x.shape[0] <= SKINNY and a.x.element_size() == 2 else multiply
    with torch.cuda.device_of(a.x):
        return call(rows).view(out_shape)


def variants() -> list[Variant]:
    """Some of the programs that calls compile to."""
    sizes = dict.fromkeys(("m", "inter", "k", "x_stride", "weight_stride", "counters"), "i32")
    names = dict.fromkeys(("x_ptr", "weight_ptr", "up_ptr", "bias_ptr", "h_ptr"), "*bf16")
    names |= {"counters_ptr": "*i32"}
    down_sizes = dict.fromkeys(("m", "n", "inter", "weight_stride", "share"), "i32")
    down_names = dict.fromkeys(("h_ptr", "weight_ptr", "bias_ptr", "out_ptr"), "*bf16")
    down_names |= {"parts_ptr": "*fp32", "counters_ptr": "*i32"}
    found = []
    for bm in (16, 64):
        up, last = ({k: v for k, v in o.items() if k != "num_stages"} for o in _options(bm, False))
        warps = up.pop("num_warps"), last.pop("num_warps")
        first = {"BM": bm, "BC": 64, "ACTIVATION": "silu", "HAS_BIAS": True, **up}
        second = {"BM": bm, "HAS_BIAS": True, "SPLITS": SPLITS, **last}
        found.append(Variant(gated_mlp_kernel, names | sizes, first, warps[0]))
        found.append(Variant(gated_mlp_kernel_down, down_names | down_sizes, second, warps[1]))
    types = {"x_ptr": "*bf16", "width": "i32", "blocks": "i32"}
    constants = {"ACTIVATION": "gelu", "BLOCK": 1024}
    return [*found, Variant(gated_mlp_kernel_activate, types, constants)]
