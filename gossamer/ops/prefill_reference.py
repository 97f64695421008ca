"""What `prefill_attention` means, in plain torch: which keys a query sees, then attention."""

import torch
from torch import Tensor

from gossamer.kernels.arguments import PrefillArguments, named
from gossamer.ops.kv_block import BLOCK_TOKENS
from gossamer.ops.masked_reference import attend

PIECE = 256  # queries at a time: their scores over a long context are large


@named(PrefillArguments)
def reference(a: PrefillArguments) -> Tensor:
    out = torch.zeros_like(a.q, memory_format=torch.contiguous_format)
    for row, queries, start, near_row, near_rows, edge, far_row in a.sequences.tolist():
        positions = torch.arange(start, start + queries, device=a.q.device)
        far = far_positions(start + queries, a.window, a.sink, a.q.device)
        near = near_positions(near_rows, edge, a.sink, a.q.device)
        k = _keys(a.k[near_row : near_row + near_rows], a.far_k, far_row, len(far))
        v = _keys(a.v[near_row : near_row + near_rows], a.far_v, far_row, len(far))
        for i in range(0, queries, PIECE):
            piece = slice(row + i, row + min(i + PIECE, queries))
            q = a.q[piece].transpose(0, 1)[None]
            seen = visible(positions[i : i + PIECE], far, near, a.window, a.sink, a.sliding)
            out[piece] = attend(q, k, v, seen[None, None], None, a.scale, 0.0)[0][0].transpose(0, 1)
    return out


def _keys(near: Tensor, far: Tensor | None, row: int, rows: int) -> Tensor:
    """[1, heads, keys, D], far ones first."""
    parts = [near] if far is None else [far[row : row + rows], near]
    return torch.cat(parts).transpose(0, 1)[None]


def far_rows(end: int, window: int, sink: int) -> int:
    """How many far keys a sequence has whose last query is at `end` - 1."""
    if window < 0:
        return 0
    return max(0, (end - 1) // BLOCK_TOKENS * BLOCK_TOKENS - window - sink)


def keys_of(queries: int, start: int, window: int | None, sink: int) -> tuple[int, int, int]:
    """Near rows, edge and far rows of a chunk; see `PrefillPlan`."""
    end = start + queries
    if window is None:
        return end, 0, 0
    edge = max(0, start // BLOCK_TOKENS * BLOCK_TOKENS - window)
    return min(sink, edge) + end - edge, edge, far_rows(end, window, sink)


def far_positions(end: int, window: int, sink: int, device: torch.device) -> Tensor:
    return torch.arange(sink, sink + far_rows(end, window, sink), device=device)


def near_positions(rows: int, edge: int, sink: int, device: torch.device) -> Tensor:
    """The sinks, then all from `edge` on."""
    row, sinks = torch.arange(rows, device=device), min(sink, edge)
    return torch.where(row < sinks, row, row - sinks + edge)


def visible(
    positions: Tensor, far: Tensor, near: Tensor, window: int, sink: int, sliding: int
) -> Tensor:
    """bool [queries, far keys and near keys]: which keys the queries at these positions see."""
    query = positions[:, None]
    seen = near <= query
    if window >= 0:
        begin = query // BLOCK_TOKENS * BLOCK_TOKENS - window
        seen = torch.cat((far < begin, seen & ((near < sink) | (near >= begin))), dim=1)
        near = torch.cat((far, near))
    return seen & (near > query - sliding) if sliding else seen
