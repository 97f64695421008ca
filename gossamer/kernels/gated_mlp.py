"""Triton kernels of gossamer.ops.gated_mlp.

For few tokens the weights are read once, which is all that takes time: one launch for gate, up and
the activation, one for down, whose reading is split along its rows so that every SM has some.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from gossamer.kernels.products import activate, add_columns, store_tile, tile_of
from gossamer.kernels.variants import Variant

FEW = 64  # tokens up to which weights are streamed
CONFIG = {"up": (32, 128, 4, 4), "down": (32, 128, 4, 4)}  # columns, k, stages, warps


@triton.jit
def gated_mlp_kernel(
    x_ptr, weight_ptr, bias_ptr, h_ptr, counters_ptr, m, inter, k, x_stride, weight_stride, counters,
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
    up_ptr = weight_ptr + inter.to(tl.int64) * weight_stride
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
    h_ptr, weight_ptr, bias_ptr, out_ptr, parts_ptr, counters_ptr, m, n, inter, weight_stride, share,
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


def stream(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    biases: tuple[Tensor | None, Tensor | None],
    activation: str,
    up_config: tuple[int, int, int, int],
    down_config: tuple[int, int, int, int],
    splits: int,
) -> Tensor:
    """x [few rows, k] through gate, up, activation and down."""
    m, k = x.shape
    inter, n = gate_up.shape[0] // 2, down.shape[0]
    bm = max(16, triton.next_power_of_2(m))
    h, out = x.new_empty((m, inter)), x.new_empty((m, n))
    columns, depth, stages, warps = down_config
    tiles = triton.cdiv(n, columns)
    counters = torch.empty(tiles, dtype=torch.int32, device=x.device)
    parts = torch.empty(splits if splits > 1 else 0, m, n, dtype=torch.float32, device=x.device)
    share = triton.cdiv(triton.cdiv(inter, splits), depth) * depth
    gate_up_bias, down_bias = biases
    bn, bk, up_stages, up_warps = up_config
    gated_mlp_kernel[(triton.cdiv(inter, bn),)](
        *(x, gate_up, x if gate_up_bias is None else gate_up_bias, h, counters),
        *(m, inter, k, x.stride(0), gate_up.stride(0), tiles),
        ACTIVATION=activation, HAS_BIAS=gate_up_bias is not None,
        BM=bm, BN=bn, BK=bk, BC=triton.next_power_of_2(tiles),
        num_stages=up_stages, num_warps=up_warps,
    )  # fmt: skip
    gated_mlp_kernel_down[(tiles, splits)](
        *(h, down, x if down_bias is None else down_bias, out, parts, counters),
        *(m, n, inter, down.stride(0), share),
        HAS_BIAS=down_bias is not None, SPLITS=splits,
        BM=bm, BN=columns, BK=depth, num_stages=stages, num_warps=warps,
    )  # fmt: skip
    return out
