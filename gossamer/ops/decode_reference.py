"""What `decode_attention` means, in plain torch and float32, one sequence at a time."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import DecodeArguments, named
from gossamer.ops import kv_codec
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat


@named(DecodeArguments)
def reference(a: DecodeArguments) -> tuple[Tensor, Tensor]:
    q, page_size, head_dim = a.q, a.page_size, a.q.shape[-1]
    k_fmt = BlockFormat(head_dim, a.k_keep, a.k_values, a.k_scales)
    v_fmt = BlockFormat(head_dim, a.v_keep, a.v_values, a.v_scales)
    dense_fmt = BlockFormat(head_dim, None, a.dense_values)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:3], -torch.inf, device=q.device)
    tables = [t for t in (a.page_table, a.dense_table) if t is not None]
    capacity = min(t.shape[1] for t in tables) * page_size
    for s, length in enumerate(a.seq_lens.tolist()):
        if length == 0:
            continue
        if not 0 <= length <= capacity:
            out[s], lse[s] = torch.nan, torch.nan
            continue
        slots = _slots(a.page_table[s], length, page_size)
        k, v = _rows(a.k_blocks, slots, k_fmt), _rows(a.v_blocks, slots, v_fmt)
        seen = visible(length, q.shape[1], a.sliding, q.device)
        if a.dense_k is not None and a.dense_v is not None and a.dense_table is not None:
            # The same tokens once more, uncompressed; every query sees one of the two.
            slots = _slots(a.dense_table[s], length, page_size)
            k = torch.cat([k, _rows(a.dense_k, slots, dense_fmt)])
            v = torch.cat([v, _rows(a.dense_v, slots, dense_fmt)])
            dense = sees_dense(length, q.shape[1], a.window, a.sink, q.device)
            seen = torch.cat([seen & ~dense, seen & dense], dim=1)
        out[s], lse[s] = _attend(q[s], k, v, seen, a.scale, a.softcap)
    return out, lse


def visible(length: int, q_len: int, sliding: int, device: torch.device) -> Tensor:
    """Whether each of the last q_len tokens sees each token: bool [q_len, length]."""
    token = torch.arange(length, device=device)
    position = torch.arange(length - q_len, length, device=device).unsqueeze(1)
    seen = token <= position
    return seen & (token > position - sliding) if sliding else seen


def sees_dense(length: int, q_len: int, window: int, sink: int, device: torch.device) -> Tensor:
    """Whether each of the last q_len tokens sees each token uncompressed, if at all."""
    block = torch.arange(length, device=device) // BLOCK_TOKENS
    position = torch.arange(length - q_len, length, device=device).unsqueeze(1)
    recent = block >= position // BLOCK_TOKENS - window // BLOCK_TOKENS
    return recent | (block < sink // BLOCK_TOKENS)


def _slots(pages: Tensor, length: int, page_size: int) -> Tensor:
    """Slots [length] of the tokens of a sequence, -1 where its table names no page."""
    token = torch.arange(length, device=pages.device)
    page = pages.long()[token // page_size]
    return torch.where(page < 0, -1, page * page_size + token % page_size)


def _rows(blocks: Tensor, slots: Tensor, fmt: BlockFormat) -> Tensor:
    """Rows [length, heads, head_dim] in float32; NaN where there is no such slot."""
    rows = kv_codec.read(blocks, slots, fmt)
    missing = (slots < 0) | (slots >= blocks.shape[0] * BLOCK_TOKENS)
    return rows.masked_fill(missing[:, None, None], torch.nan)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    """q [q_len, heads, D] over k, v [tokens, kv_heads, D] where seen [q_len, tokens]."""
    group = q.shape[1] // k.shape[1]
    # What no query sees may be anything, also NaN: weight 0 alone would not keep it out.
    unused = ~seen.any(0)[:, None, None]
    k = k.masked_fill(unused, 0).repeat_interleave(group, dim=1)
    v = v.masked_fill(unused, 0).repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,thd->qht", q.float(), k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen.unsqueeze(1), -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.unsqueeze(-1).masked_fill(lse.unsqueeze(-1) == -torch.inf, 0))
    return torch.einsum("qht,thd->qhd", weights, v).to(q.dtype), lse
