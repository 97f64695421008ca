"""The keys of every query, as lists: what the row kernel reads."""

import torch
from torch import Tensor

from gossamer.masks import TileMap, bitmaps

ENTRIES = 1 << 24  # of tiles that are looked at, at a time


def key_lists(tiles: TileMap) -> tuple[Tensor, Tensor]:
    """row_offsets and keys of `gossamer.ops.masked_attention_rows`. Waits for the device."""
    full = torch.ones_like(tiles.bits[:1]).neg()  # all bits
    patterns = bitmaps.unpack(torch.cat((tiles.bits, full)))  # kind -1 is the last one
    row_of_tiles = tiles.row_of_tiles()
    step = max(1, ENTRIES // (tiles.tile_q * tiles.tile_k))
    places = [
        _places(tiles, patterns, row_of_tiles, slice(start, start + step))
        for start in range(0, len(tiles.columns), step)
    ]
    found = torch.cat(places) if places else row_of_tiles.new_empty(0)
    found = found.sort().values
    queries = tiles.batch * tiles.heads * tiles.q_len
    counts = (found // tiles.kv_len).bincount(minlength=queries)
    offsets = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    return offsets.int(), (found % tiles.kv_len).int()


def _places(tiles: TileMap, patterns: Tensor, row_of_tiles: Tensor, part: slice) -> Tensor:
    """int64: query * kv_len + key of what some tiles allow; queries of all heads are counted on."""
    tile, r, c = patterns[tiles.kinds[part].long()].nonzero(as_tuple=True)
    row = row_of_tiles[part][tile]
    query = row % tiles.rows * tiles.tile_q + r
    key = tiles.columns[part].long()[tile] * tiles.tile_k + c
    inside = (query < tiles.q_len) & (key < tiles.kv_len)  # full tiles reach beyond the last query
    places = (row // tiles.rows * tiles.q_len + query) * tiles.kv_len + key
    return places[inside]
