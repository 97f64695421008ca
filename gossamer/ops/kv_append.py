"""One row per sequence into its next place: what a decode step adds to a paged cache."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import KvAppendArguments, named
from gossamer.ops import kv_codec
from gossamer.ops.checks import check_shape
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat
from gossamer.ops.kv_checks import (
    check_alignment,
    check_head_dim,
    check_plain,
    check_ranking,
    check_slots,
    check_write,
    on_host,
)
from gossamer.ops.registry import Op


def kv_append(
    x: Tensor,
    blocks: Tensor,
    block_table: Tensor,
    positions: Tensor,
    fmt: BlockFormat,
    *,
    weights: Tensor | None = None,
    scores: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Store row i of x [sequences, heads, head_dim] as token positions[i] of sequence i.

    block_table: int32 [sequences, max_blocks], where block b of sequence i is block_table[i, b] of
    `blocks`. positions: int64 [sequences]; -1 skips the row, as a padded batch in a CUDA graph
    needs. x (float32, float16 or bfloat16), blocks, fmt, weights and scores are as in `kv_pack`,
    but for formats with scales per channel, which cannot be written one token at a time.
    Raises TypeError or ValueError, before anything is written; numbers on a GPU are trusted as in
    `kv_pack`, and a table and positions on the CPU are checked there.
    """
    options = (fmt.keep, fmt.values, str(fmt.scales), weights, scores)
    check_head_dim("kv_append", x, fmt)
    if on_host(positions, x) and on_host(block_table, x):
        checked = block_table, positions
        block_table, positions = block_table.to(x.device), positions.to(x.device)
        _check(x, blocks, block_table, positions, *options)
        _check_numbers(blocks, *checked)
    _op(x, blocks, block_table, positions, *options, backend=backend)


def slots_of(block_table: Tensor, positions: Tensor) -> Tensor:
    """Slots [sequences] of these positions; -1 for a negative one or one beyond the table."""
    width = block_table.shape[1]
    inside = (positions >= 0) & (positions < width * BLOCK_TOKENS)
    if width == 0:
        return torch.full_like(positions, -1)
    column = (positions // BLOCK_TOKENS).clamp(0, width - 1).unsqueeze(1)
    block = block_table.long().gather(1, column).squeeze(1)
    slots = torch.where(block < 0, -1, block * BLOCK_TOKENS + positions % BLOCK_TOKENS)
    return torch.where(inside, slots, -1)


@named(KvAppendArguments)
def _reference(a: KvAppendArguments) -> None:
    fmt = BlockFormat(a.x.shape[-1], a.keep, a.values, a.scales)
    kv_codec.write(a.x, a.blocks, slots_of(a.block_table, a.positions), fmt, a.weights, a.scores)


@named(KvAppendArguments)
def _check(a: KvAppendArguments) -> None:
    op = "kv_append"
    fmt = check_write(op, a.x, a.blocks, a.keep, a.values, a.scales)
    if fmt.whole_blocks:
        raise ValueError(f"{op}: scales is 'channel'; must be 'none', 'row' or 'group'")
    check_plain(op, "block_table", a.block_table, torch.int32, a.x.device)
    if a.block_table.dim() != 2 or a.block_table.shape[0] != a.x.shape[0]:
        raise ValueError(
            f"{op}: block_table has shape {list(a.block_table.shape)}; "
            f"must be [{a.x.shape[0]}, max_blocks], a line for each row of x"
        )
    check_plain(op, "positions", a.positions, torch.int64, a.x.device)
    check_shape(op, "positions", a.positions, (a.x.shape[0],), "one for each row of x")
    check_ranking(op, a.x, fmt, a.weights, a.scores)


@named(KvAppendArguments)
def _check_values(a: KvAppendArguments) -> None:
    check_alignment("kv_append", a.blocks)
    if a.positions.device.type == "cpu":
        _check_numbers(a.blocks, a.block_table, a.positions)


def _check_numbers(blocks: Tensor, block_table: Tensor, positions: Tensor) -> None:
    op = "kv_append"
    last = block_table.shape[1] * BLOCK_TOKENS - 1
    wrong = positions[(positions < -1) | (positions > last)]
    if wrong.numel():
        valid = f"0 to {last}, or -1 for none" if last > 0 else "-1, as the table has no column"
        raise ValueError(f"{op}: a position is {wrong[0].item()}; must be {valid}")
    live = positions >= 0
    named = block_table[live].gather(1, (positions[live] // BLOCK_TOKENS).unsqueeze(1)).squeeze(1)
    wrong = named[(named < 0) | (named >= blocks.shape[0])]
    if wrong.numel():
        raise ValueError(
            f"{op}: the block of a position is {wrong[0].item()}; "
            f"must be 0 to {blocks.shape[0] - 1}"
        )
    check_slots(op, slots_of(block_table, positions), blocks.shape[0], unique=True)


_op = Op(
    "kv_append",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=lambda *_: None,
    mutates=("blocks",),
    example=lambda make: (
        make(3, 2, 64),
        torch.zeros(4, 2, BlockFormat(64, 24).nbytes, dtype=torch.uint8).to(make(1).device),
        torch.tensor([[3, 1], [0, 0], [2, 0]], dtype=torch.int32).to(make(1).device),
        torch.tensor([40, -1, 7]).to(make(1).device),
        *(24, "fp16", "none", None, None),
    ),
)
