"""Argument checks of `decode_attention`."""

import math
from typing import Any

import torch
from torch import Tensor

from gossamer.ops.checks import check_shape, check_tensor, one_of
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat
from gossamer.ops.kv_checks import check_blocks, check_format, check_plain

OP = "decode_attention"
MAX_Q_LEN = 8
MAX_GROUP = 16


def check(
    q: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    page_table: Tensor,
    seq_lens: Tensor,
    dense_k: Tensor | None,
    dense_v: Tensor | None,
    dense_table: Tensor | None,
    k_keep: int | None,
    k_values: str,
    k_scales: str,
    v_keep: int | None,
    v_values: str,
    v_scales: str,
    dense_values: str,
    window: int,
    sink: int,
    page_size: int,
    scale: float,
    softcap: float,
    sliding: int,
) -> None:
    """Raises TypeError or ValueError for what can be seen without looking at numbers in tensors."""
    _check_queries(q)
    head_dim = q.shape[3]
    _check_pool(q, "k_blocks", k_blocks, check_format(OP, head_dim, k_keep, k_values, k_scales))
    _check_pool(q, "v_blocks", v_blocks, check_format(OP, head_dim, v_keep, v_values, v_scales))
    if v_blocks.shape[1] != k_blocks.shape[1]:
        raise ValueError(
            f"{OP}: v_blocks has {v_blocks.shape[1]} heads; "
            f"must be {k_blocks.shape[1]}, those of k_blocks"
        )
    _check_heads(q.shape[2], k_blocks.shape[1])
    _check_table(q, "page_table", page_table)
    check_plain(OP, "seq_lens", seq_lens, torch.int32, q.device)
    check_shape(OP, "seq_lens", seq_lens, (q.shape[0],), "one for each sequence of q")
    one_of(f"{OP}: the window's values", dense_values, ("fp32", "fp16", "bf16"))
    for name, size, least in (
        ("page_size", page_size, 1),
        ("window", window, 0),
        ("sink", sink, 0),
    ):
        if size < least or size % BLOCK_TOKENS:
            kind = "a positive" if least else "0 or a"
            raise ValueError(f"{OP}: {name} is {size}; must be {kind} multiple of {BLOCK_TOKENS}")
    _check_window(
        q, k_blocks, dense_k, dense_v, dense_table, BlockFormat(head_dim, None, dense_values)
    )
    if not math.isfinite(scale):
        raise ValueError(f"{OP}: scale is {scale}; must be finite")
    if not (math.isfinite(softcap) and softcap >= 0):
        raise ValueError(f"{OP}: softcap is {softcap}; must be positive, or 0 for none")
    if sliding < 0:
        raise ValueError(f"{OP}: sliding is {sliding}; must be at least 1 token, or 0 for none")


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


def _check_window(
    q: Tensor, k_blocks: Tensor, k: Any, v: Any, table: Any, fmt: BlockFormat
) -> None:
    given = [x is not None for x in (k, v, table)]
    if not any(given):
        return
    if not all(given):
        raise ValueError(f"{OP}: a part of the window is None; must be all of its tensors or none")
    for name, blocks in (("the window's k_blocks", k), ("the window's v_blocks", v)):
        _check_pool(q, name, blocks, fmt)
        if blocks.shape[1] != k_blocks.shape[1]:
            raise ValueError(
                f"{OP}: {name} has {blocks.shape[1]} heads; "
                f"must be {k_blocks.shape[1]}, those of k_blocks"
            )
    _check_table(q, "the window's table", table)


def check_numbers(*args: Any) -> None:
    """Lengths and page numbers on the CPU; ValueError where there is no such token or page."""
    q, k_blocks, v_blocks, page_table, seq_lens, dense_k, dense_v, dense_table = args[:8]
    window, sink, page_size, sliding = args[15], args[16], args[17], args[20]
    lens = seq_lens.long()
    tables = [page_table] if dense_table is None else [page_table, dense_table]
    capacity = min(t.shape[1] for t in tables) * page_size
    wrong = lens[(lens < 0) | (lens > capacity)]
    if wrong.numel():
        raise ValueError(
            f"{OP}: a length is {wrong[0].item()}; must be 0 to {capacity}, "
            f"the tokens of the table's {capacity // page_size} pages of {page_size}"
        )
    q_len = q.shape[1]
    first, last = (lens - q_len).clamp_min(0), lens - 1  # positions of the queries
    low = (first - sliding + 1).clamp_min(0) if sliding else torch.zeros_like(lens)
    num_pages = min(k_blocks.shape[0], v_blocks.shape[0]) * BLOCK_TOKENS // page_size
    longest = int(lens.max()) if lens.numel() else 0
    block = torch.arange(-(-longest // BLOCK_TOKENS))
    seen = (block >= low[:, None] // BLOCK_TOKENS) & (block <= last[:, None] // BLOCK_TOKENS)
    seen &= (lens > 0)[:, None]
    if dense_table is None:
        _check_pages("page_table", page_table, seen, num_pages, page_size)
        return
    sinks = block < sink // BLOCK_TOKENS
    recent_to_first, recent_to_last = (
        block >= (at // BLOCK_TOKENS - window // BLOCK_TOKENS)[:, None] for at in (first, last)
    )
    _check_pages("page_table", page_table, seen & ~sinks & ~recent_to_last, num_pages, page_size)
    num_pages = min(dense_k.shape[0], dense_v.shape[0]) * BLOCK_TOKENS // page_size
    dense = seen & (sinks | recent_to_first)
    _check_pages("the window's table", dense_table, dense, num_pages, page_size)


def _check_pages(name: str, table: Tensor, seen: Tensor, num_pages: int, page_size: int) -> None:
    """The pages of the blocks that are seen, bool [sequences, blocks]."""
    page = torch.arange(seen.shape[1]) * BLOCK_TOKENS // page_size  # of each block
    named = table[:, page][seen]
    wrong = named[(named < 0) | (named >= num_pages)]
    if wrong.numel():
        valid = f"0 to {num_pages - 1}" if num_pages else "none, as there are no blocks"
        raise ValueError(f"{OP}: a page of {name} is {wrong[0].item()}; must be {valid}")
