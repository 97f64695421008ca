"""Argument checks of `decode_attention`."""

from typing import Any, cast

import torch
from torch import Tensor

from gossamer.kernels.arguments import DecodeArguments, named
from gossamer.ops.checks import check_floats, check_range, check_shape, check_tensor, one_of
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat
from gossamer.ops.kv_checks import check_alignment, check_blocks, check_format, check_plain

OP = "decode_attention"
MAX_Q_LEN = 8
MAX_GROUP = 16


@named(DecodeArguments)
def check(a: DecodeArguments) -> None:
    """Raises TypeError or ValueError for what can be seen without looking at numbers in tensors."""
    _check_queries(a.q)
    q, head_dim = a.q, a.q.shape[3]
    k_fmt = check_format(OP, head_dim, a.k_keep, a.k_values, a.k_scales)
    _check_pool(q, "k_blocks", a.k_blocks, k_fmt)
    v_fmt = check_format(OP, head_dim, a.v_keep, a.v_values, a.v_scales)
    _check_pool(q, "v_blocks", a.v_blocks, v_fmt)
    kv_heads = a.k_blocks.shape[1]
    _check_same_heads("v_blocks", a.v_blocks, kv_heads)
    _check_heads(q.shape[2], kv_heads)
    _check_table(q, "page_table", a.page_table)
    check_plain(OP, "seq_lens", a.seq_lens, torch.int32, q.device)
    check_shape(OP, "seq_lens", a.seq_lens, (q.shape[0],), "one for each sequence of q")
    one_of(f"{OP}: the window's values", a.dense_values, ("fp32", "fp16", "bf16"))
    sizes = (("page_size", a.page_size, 1), ("window", a.window, 0), ("sink", a.sink, 0))
    for name, size, least in sizes:
        if size < least or size % BLOCK_TOKENS:
            kind = "a positive" if least else "0 or a"
            raise ValueError(f"{OP}: {name} is {size}; must be {kind} multiple of {BLOCK_TOKENS}")
    _check_window(a, kv_heads)
    check_floats(OP, a.scale, a.softcap)
    if a.sliding < 0:
        raise ValueError(f"{OP}: sliding is {a.sliding}; must be at least 1 token, or 0 for none")


def _check_queries(q: Any) -> None:
    check_tensor(OP, "q", q)
    if q.dim() != 4:
        raise ValueError(
            f"{OP}: q has {q.dim()} dimensions; must have 4: sequences, q_len, heads, head_dim"
        )
    if not 1 <= q.shape[1] <= MAX_Q_LEN:
        raise ValueError(f"{OP}: q_len is {q.shape[1]}; must be 1 to {MAX_Q_LEN}")


def _check_heads(heads: int, kv_heads: int) -> None:
    if kv_heads < 1 or heads % kv_heads or not 1 <= heads // kv_heads <= MAX_GROUP:
        raise ValueError(
            f"{OP}: q has {heads} heads and the cache {kv_heads}; "
            f"must be 1 to {MAX_GROUP} times as many"
        )


def _check_pool(q: Tensor, name: str, blocks: Any, fmt: BlockFormat) -> None:
    try:
        check_blocks(OP, blocks, fmt, q.device)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("blocks", name, 1)) from None


def _check_table(q: Tensor, name: str, table: Any) -> None:
    check_plain(OP, name, table, torch.int32, q.device)
    if table.dim() != 2 or table.shape[0] != q.shape[0]:
        raise ValueError(
            f"{OP}: {name} has shape {list(table.shape)}; "
            f"must be [{q.shape[0]}, max_pages], a line for each sequence of q"
        )


def _check_same_heads(name: str, blocks: Tensor, kv_heads: int) -> None:
    if blocks.shape[1] != kv_heads:
        raise ValueError(
            f"{OP}: {name} has {blocks.shape[1]} heads; must be {kv_heads}, those of k_blocks"
        )


def _check_window(a: DecodeArguments, kv_heads: int) -> None:
    given = [x is not None for x in (a.dense_k, a.dense_v, a.dense_table)]
    if not any(given):
        return
    if not all(given):
        raise ValueError(f"{OP}: a part of the window is None; must be all of its tensors or none")
    fmt = BlockFormat(a.q.shape[3], None, a.dense_values)
    for name, blocks in (
        ("the window's k_blocks", a.dense_k),
        ("the window's v_blocks", a.dense_v),
    ):
        _check_pool(a.q, name, blocks, fmt)
        _check_same_heads(name, cast(Tensor, blocks), kv_heads)
    _check_table(a.q, "the window's table", a.dense_table)


@named(DecodeArguments)
def check_values(a: DecodeArguments) -> None:
    """Addresses; lengths and page numbers on the CPU. ValueError where there is no such page."""
    for blocks in (a.k_blocks, a.v_blocks, a.dense_k, a.dense_v):
        if blocks is not None:
            check_alignment(OP, blocks)
    if a.seq_lens.device.type == "cpu":
        _check_lengths(a)


def _check_lengths(a: DecodeArguments) -> None:
    page_size, lens = a.page_size, a.seq_lens.long()
    tables = [a.page_table] if a.dense_table is None else [a.page_table, a.dense_table]
    capacity = min(t.shape[1] for t in tables) * page_size
    wrong = lens[(lens < 0) | (lens > capacity)]
    if wrong.numel():
        raise ValueError(
            f"{OP}: a length is {wrong[0].item()}; must be 0 to {capacity}, "
            f"the tokens of the table's {capacity // page_size} pages of {page_size}"
        )
    first, last = (lens - a.q.shape[1]).clamp_min(0), lens - 1  # positions of the queries
    low = (first - a.sliding + 1).clamp_min(0) if a.sliding else torch.zeros_like(lens)
    longest = int(lens.max()) if lens.numel() else 0
    block = torch.arange(-(-longest // BLOCK_TOKENS))
    seen = (block >= low[:, None] // BLOCK_TOKENS) & (block <= last[:, None] // BLOCK_TOKENS)
    seen &= (lens > 0)[:, None]
    pools = (a.k_blocks, a.v_blocks)
    if a.dense_k is None or a.dense_v is None or a.dense_table is None:
        return _check_pages("page_table", a.page_table, seen, pools, page_size)
    sinks = block < a.sink // BLOCK_TOKENS
    recent_to_first, recent_to_last = (
        block >= (at // BLOCK_TOKENS - a.window // BLOCK_TOKENS)[:, None] for at in (first, last)
    )
    _check_pages("page_table", a.page_table, seen & ~sinks & ~recent_to_last, pools, page_size)
    dense, pools = seen & (sinks | recent_to_first), (a.dense_k, a.dense_v)
    return _check_pages("the window's table", a.dense_table, dense, pools, page_size)


def _check_pages(
    name: str, table: Tensor, seen: Tensor, pools: tuple[Tensor, Tensor], page_size: int
) -> None:
    """The pages of the blocks that are seen, bool [sequences, blocks]."""
    num_pages = min(pool.shape[0] for pool in pools) * BLOCK_TOKENS // page_size
    page = torch.arange(seen.shape[1]) * BLOCK_TOKENS // page_size  # of each block
    check_range(OP, f"a page of {name}", table[:, page][seen], 0, num_pages, "blocks")
