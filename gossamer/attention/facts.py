"""What the cost of a call depends on, of a mask in tiles: how much there is to do in each row."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.masks import TileMap
from gossamer.masks.work import QUERIES_OF_SM

Counts = NDArray[np.int64]
STRIP = 16  # queries


@dataclass(frozen=True, eq=False)
class TileFacts:
    """Tiles of each row of a map, on the host. density: share of what is allowed.

    strips: partial tiles, each counted as the share of its strips of 16 queries that see anything:
    kernels skip the others.
    """

    tile: tuple[int, int]
    batch: int  # as in TileMap: 1 where all are the same
    heads: int
    full: Counts  # [rows]
    partial: Counts  # [rows]
    density: float
    strips: float

    @classmethod
    def of(cls, tiles: TileMap) -> "TileFacts":
        """Waits for the device."""
        offsets = tiles.offsets.cpu().numpy().astype(np.int64)
        before = np.concatenate(([0], np.cumsum(tiles.kinds.cpu().numpy() >= 0)))
        partial = np.diff(before[offsets])
        full = np.diff(offsets) - partial
        seen = tiles.bits.view(len(tiles.bits), tiles.tile_q // STRIP, -1).any(-1).double().mean(1)
        strips = float(seen[tiles.kinds[tiles.kinds >= 0].long()].sum())
        tile, density = (tiles.tile_q, tiles.tile_k), tiles.counts().density
        return cls(tile, tiles.batch, tiles.heads, full, partial, density, strips)

    @property
    def rows(self) -> Counts:
        """Tiles of each row."""
        return self.full + self.partial

    @property
    def total(self) -> int:
        return int(self.rows.sum())

    def replicas(self, batch: int, heads: int) -> int:
        """Batch elements times heads that share the map, of a call with so many."""
        return (batch // self.batch) * (heads // self.heads)

    def piece_limit(self, replicas: int, multiprocessors: int, least_keys: int) -> int:
        """As `gossamer.masks.work.piece_limit`."""
        places = multiprocessors * QUERIES_OF_SM // self.tile[0]
        share = -(-self.total * replicas // places)
        return max(least_keys // self.tile[1], share)

    def pieces(self, limit: int) -> Counts:
        """Tiles of each piece, most first, of rows cut as `gossamer.masks.work.work_list` does."""
        rows = self.rows
        if not limit or not len(rows) or int(rows.max()) <= limit:
            return -np.sort(-rows)
        parts = np.maximum(-(-rows // limit), 1)
        row = np.repeat(np.arange(len(rows)), parts)
        part = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
        count, of_row = rows[row], parts[row]
        lengths = count * (part + 1) // of_row - count * part // of_row
        return -np.sort(-lengths)


def same_mask(tiles: TileMap, other: TileMap) -> bool:
    """Whether two maps with tiles of the same size allow the same. Waits for the device."""
    if tiles.offsets.shape != other.offsets.shape or tiles.columns.shape != other.columns.shape:
        return False
    pairs: list[tuple[Any, Any]] = [
        (tiles.offsets, other.offsets),
        (tiles.columns, other.columns),
        (tiles.kinds < 0, other.kinds < 0),
    ]
    if not all(bool((a == b).all()) for a, b in pairs):
        return False
    partial = tiles.kinds >= 0
    mine, theirs = tiles.kinds[partial].long(), other.kinds[partial].long()
    # Maps of one mask name patterns differently: compare each pair of names once.
    names = (mine * len(other.bits) + theirs).unique()
    return bool((tiles.bits[names // len(other.bits)] == other.bits[names % len(other.bits)]).all())
