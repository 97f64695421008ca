"""Rows of K or V into blocks: select, encode and store in one pass."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import KvPackArguments, named
from gossamer.ops import kv_codec
from gossamer.ops.checks import check_shape
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat
from gossamer.ops.kv_checks import (
    check_alignment,
    check_head_dim,
    check_plain,
    check_ranking,
    check_slots,
    check_whole_blocks,
    check_write,
    on_host,
)
from gossamer.ops.registry import Op


def kv_pack(
    x: Tensor,
    blocks: Tensor,
    slots: Tensor,
    fmt: BlockFormat,
    *,
    weights: Tensor | None = None,
    scores: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Store rows x [N, heads, head_dim] in slots [N] of `blocks` [num_blocks, heads, fmt.nbytes].

    Slot s is token s % 32 of block s // 32; -1 skips the row. A sparse format keeps exactly
    `fmt.keep` entries of each row: those of largest |x|, or |x * weights| (weights [heads,
    head_dim], float32), or |scores| (scores like x, float32). Ties go to the lower channel. NaN
    ranks above infinity, so it is kept; with scales, one NaN or infinity among the kept entries (or
    one too large for a float16 scale) makes everything that shares its scale NaN. Rows with a
    profile of bits and a scale get the one with the least square error, in which channels count by
    `weights`; without a scale they are clamped: infinity ends up at the end of the range, NaN in
    its middle.

    x: float32, float16 or bfloat16, any strides; rounded to the format's values (1e5 is infinite in
    fp16). blocks: uint8, 16-byte aligned, apart from each other and from x, written in place.
    slots: int64. A format with scales per channel is written in whole blocks: N is a multiple of
    32, and each 32 slots are those of one block in order.
    Raises TypeError or ValueError, before anything is written. Slots on the CPU are checked, also
    when x is on a GPU, to which they are then copied. Slots on a GPU are trusted, because looking
    at them would wait for them: one out of range is skipped, and a slot that is there twice ends up
    undefined.
    """
    check_head_dim("kv_pack", x, fmt)
    options = (fmt.keep, fmt.values, str(fmt.scales), weights, scores)
    if on_host(slots, x):
        checked, slots = slots, slots.to(x.device)
        _check(x, blocks, slots, *options)
        _check_numbers(checked, blocks.shape[0], fmt.scales)
    _op(x, blocks, slots, *options, backend=backend)


@named(KvPackArguments)
def _reference(a: KvPackArguments) -> None:
    fmt = BlockFormat(a.x.shape[-1], a.keep, a.values, a.scales)
    kv_codec.write(a.x, a.blocks, a.slots, fmt, a.weights, a.scores)


@named(KvPackArguments)
def _check(a: KvPackArguments) -> None:
    op = "kv_pack"
    fmt = check_write(op, a.x, a.blocks, a.keep, a.values, a.scales)
    check_plain(op, "slots", a.slots, torch.int64, a.x.device)
    check_shape(op, "slots", a.slots, (a.x.shape[0],), "one for each row of x")
    if fmt.whole_blocks and a.x.shape[0] % BLOCK_TOKENS:
        raise ValueError(
            f"{op}: x has {a.x.shape[0]} rows; must be a multiple of {BLOCK_TOKENS} "
            "for scales 'channel'"
        )
    check_ranking(op, a.x, fmt, a.weights, a.scores)


@named(KvPackArguments)
def _check_values(a: KvPackArguments) -> None:
    check_alignment("kv_pack", a.blocks)
    if a.slots.device.type == "cpu":
        _check_numbers(a.slots, a.blocks.shape[0], a.scales)


def _check_numbers(slots: Tensor, num_blocks: int, scales: str | None) -> None:
    check_slots("kv_pack", slots, num_blocks, unique=True)
    if scales == "channel":
        check_whole_blocks("kv_pack", slots)


_op = Op(
    "kv_pack",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=lambda *_: None,
    mutates=("blocks",),
    example=lambda make: (
        make(5, 2, 64),
        torch.zeros(2, 2, BlockFormat(64, 24, "int8").nbytes, dtype=torch.uint8).to(make(1).device),
        torch.tensor([33, 2, -1, 63, 0]).to(make(1).device),
        *(24, "int8", "row", None, None),
    ),
)
