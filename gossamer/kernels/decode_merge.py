"""Shares of decode attention merged: the second of its two Triton kernels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.decode_blocks import padded
from gossamer.kernels.variants import POINTERS, Variant

TILE = 8  # shares at a time
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["splits", "heads", "group", "q_len"])
def decode_attention_kernel_merge(
    stats_ptr, sums_ptr, out_ptr, lse_ptr, splits, heads, group, q_len,
    D: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One row of out, [sequences, q_len, heads, D], and its lse, by the shares of its KV head.

    stats: [sequences, kv_heads, splits, rows, 2], the largest score times log2 e and the total;
    sums: [sequences, kv_heads, splits, rows, D]; rows are the group's heads of each query.
    """
    index = tl.program_id(0)
    head = index % heads
    query = index // heads % q_len
    seq = (index // heads // q_len).to(tl.int64)
    rows = q_len * group
    row = query * group + head % group
    first = (seq * (heads // group) + head // group) * splits  # share

    largest = -float("inf")
    for base in range(0, splits, TILE):
        split = base + tl.arange(0, TILE)
        at = ((first + split) * rows + row) * 2
        found = tl.load(stats_ptr + at, mask=split < splits, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(found, axis=0))
    origin = tl.where(tl.abs(largest) == float("inf"), 0.0, largest)

    channel = tl.arange(0, padded(D))
    totals = tl.zeros((TILE,), dtype=tl.float32)
    sums = tl.zeros((padded(D),), dtype=tl.float32)
    for base in range(0, splits, TILE):
        split = base + tl.arange(0, TILE)
        inside = split < splits
        at = ((first + split) * rows + row) * 2
        weight = tl.exp2(tl.load(stats_ptr + at, mask=inside, other=-float("inf")) - origin)
        totals += weight * tl.load(stats_ptr + at + 1, mask=inside, other=0.0)
        at = ((first + split) * rows + row)[:, None] * D + channel[None, :]
        part = tl.load(sums_ptr + at, mask=inside[:, None] & (channel < D)[None, :], other=0.0)
        sums += tl.sum(weight[:, None] * part, axis=0)
    total = tl.sum(totals, axis=0)
    out = (sums / tl.where(total == 0.0, 1.0, total)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + index.to(tl.int64) * D + channel, out, mask=channel < D)
    tl.store(lse_ptr + index, (largest + tl.log2(total)) * LN2)


def merge(stats: Tensor, sums: Tensor, q: Tensor, splits: int, group: int) -> tuple[Tensor, Tensor]:
    """out like q and lse, from what the shares of decode_attention_kernel left."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    decode_attention_kernel_merge[(lse.numel(),)](
        stats, sums, out, lse, splits, q.shape[2], group, q.shape[1],
        D=q.shape[3], TILE=TILE, num_warps=2,
    )  # fmt: skip
    return out, lse


def variants() -> list[Variant]:
    """Some of the programs that calls compile to."""
    return [
        Variant(
            decode_attention_kernel_merge,
            {"stats_ptr": "*fp32", "sums_ptr": "*fp32", "out_ptr": p, "lse_ptr": "*fp32"}
            | dict.fromkeys(("splits", "heads", "group", "q_len"), "i32"),
            {"D": width, "TILE": TILE},
            2,
        )
        for p, width in zip(POINTERS, (256, 128, 80), strict=True)
    ]
