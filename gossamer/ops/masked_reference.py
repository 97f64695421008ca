"""What `masked_attention` means, in plain torch: the dense mask from its tiles, then attention."""

from typing import cast

import torch
from torch import Tensor

from gossamer.kernels.arguments import MaskedArguments, named
from gossamer.ops.masked_checks import WORD, Map


@named(MaskedArguments)
def reference(a: MaskedArguments) -> tuple[Tensor, Tensor]:
    # Without `work`: which rows are computed first does not change them.
    seen = dense_mask(Map(a.offsets, a.tiles, a.bits, a.order), a.q.shape[2], a.k.shape[2])
    out, lse = attend(a.q, a.k, a.v, seen, a.bias, a.scale, a.softcap)
    return out, lse if a.with_lse else cast(Tensor, None)  # schemas have no optional results


def dense_mask(tiles: Map, q_len: int, kv_len: int) -> Tensor:
    """bool [batch, heads, q_len, kv_len] of a map of tiles."""
    (batch, heads), (tile_q, tile_k) = tiles.groups, tiles.tile
    rows, columns, groups = -(-q_len // tile_q), -(-kv_len // tile_k), batch * heads
    device = tiles.offsets.device
    counts = tiles.offsets.diff().long()
    row = torch.arange(groups * rows, device=device).repeat_interleave(counts)
    column, kinds = tiles.tiles[:, : row.numel()].long()
    patterns = unpack_bits(tiles.bits)
    seen = torch.zeros(groups * rows, columns, tile_q, tile_k, dtype=torch.bool, device=device)
    seen[row, column] = patterns[kinds.clamp_min(0)] | (kinds < 0)[:, None, None]
    grid = seen.view(groups, rows, columns, tile_q, tile_k).transpose(2, 3)
    whole = grid.reshape(groups, rows * tile_q, columns * tile_k)
    return whole[:, :q_len, :kv_len].reshape(batch, heads, q_len, kv_len)


def unpack_bits(words: Tensor) -> Tensor:
    """int32 [..., w] to bool [..., 32 w]: bit c of a word is key c."""
    place = torch.arange(WORD, dtype=torch.int32, device=words.device)
    return ((words.unsqueeze(-1) >> place) & 1).bool().flatten(-2)


def pack_bits(seen: Tensor) -> Tensor:
    """The inverse of `unpack_bits`."""
    places = seen.unflatten(-1, (-1, WORD)).long()
    unsigned = (places << torch.arange(WORD, device=seen.device)).sum(-1)
    return torch.where(unsigned < 1 << 31, unsigned, unsigned - (1 << 32)).int()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    bias: Tensor | None,
    scale: float,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """Attention where `seen`, which expands to [B, Hq, Nq, Nk]; in float32, or float64 if q is."""
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    # What no query sees may be anything, also NaN: weight 0 alone would not keep it out.
    unused = ~seen.any(-2).unsqueeze(-1)
    k = k.to(wide).repeat_interleave(group, dim=1).masked_fill(unused, 0)
    v = v.to(wide).repeat_interleave(group, dim=1).masked_fill(unused, 0)
    scores = q.to(wide) @ k.transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(wide)
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0).unsqueeze(-1))
    return (weights @ v).to(q.dtype).contiguous(), lse
