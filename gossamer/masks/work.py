"""The rows of a tile map in pieces of similar length, for one launch of the CUDA kernel.

A global token of a Longformer makes a row as long as the sequence. Where batch and heads are few,
one such row would take longer than everything else together, so it is cut; the piece that is
finished last merges the others.
"""

import torch
from torch import Tensor

from gossamer.masks.tiles import TileMap

LEAST_KEYS = 256  # of a piece: fewer are not worth merging
KNOWN = 4  # tiles whose numbers lie in a line of the work list itself
WIDTH = 8 + 2 * KNOWN
QUERIES_OF_SM = 256  # that an SM works on at a time, about: tile_q times its CTAs


def piece_limit(
    tiles: TileMap, replicas: int, multiprocessors: int, least_keys: int = LEAST_KEYS
) -> int:
    """The most tiles that a piece should have.

    replicas: batches times heads that share the map, and so the work. A piece takes no longer than
    an equal share of the work would, for each of the CTAs that the GPU runs at a time.
    """
    places = multiprocessors * QUERIES_OF_SM // tiles.tile_q
    share = -(-tiles.columns.numel() * replicas // places)
    return max(least_keys // tiles.tile_k, share)


def work_list(tiles: TileMap, limit: int) -> Tensor:
    """int32 [pieces, WIDTH]: `work` of the op, those with the most tiles first. Waits for a GPU.

    A line: row, first tile, end (of `columns`), slot of its results (-1: a whole row), first slot
    of the row, slots of the row, nothing twice; then the columns of its first KNOWN tiles, and
    their kinds, so that the kernel reads no other list before it asks for tiles.
    """
    if limit < 1:
        raise ValueError(f"work_list: limit is {limit}; must be >= 1")
    counts = tiles.offsets.diff().long()
    parts = (-(-counts // limit)).clamp(min=1)
    row = torch.arange(len(counts), device=tiles.device).repeat_interleave(parts)
    part = torch.arange(len(row), device=tiles.device) - (parts.cumsum(0) - parts)[row]
    start, count, of_row = tiles.offsets[:-1].long()[row], counts[row], parts[row]
    begin, end = start + count * part // of_row, start + count * (part + 1) // of_row
    cut = torch.where(parts > 1, parts, 0)
    first_slot = (cut.cumsum(0) - cut)[row]
    slot = torch.where(of_row > 1, first_slot + part, -1)
    nothing = torch.zeros_like(row)
    lines = torch.stack((row, begin, end, slot, first_slot, of_row, nothing, nothing), dim=1)
    first = (
        _first(values, none, begin, end) for values, none in ((tiles.columns, 0), (tiles.kinds, -1))
    )
    lines = torch.cat((lines, *first), dim=1).int()
    return lines[(end - begin).argsort(descending=True, stable=True)].contiguous()


def _first(values: Tensor, none: int, begin: Tensor, end: Tensor) -> Tensor:
    """[pieces, KNOWN] of the values of each piece; `none` where it has fewer."""
    places = begin[:, None] + torch.arange(KNOWN, device=begin.device)
    if not len(values):
        return torch.full_like(places, none)
    known = values[places.clamp(max=len(values) - 1)].long()
    return torch.where(places < end[:, None], known, none)
