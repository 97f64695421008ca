"""Finding the tiles of one mask: bounds first, then the predicate where bounds do not tell.

Memory is bounded by chunks. Boxes with equal signatures are evaluated once, since a mask such as
a strided one has partial tiles everywhere, but few kinds of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.masks import bitmaps
from gossamer.masks.base import FULL, MIXED, Mask
from gossamer.masks.shapes import kinds as kinds_of

ENTRIES = 1 << 22  # evaluated at a time
BOXES = {"cpu": 1 << 18}  # classified at a time: on a CPU what its cache holds
MANY_BOXES = 1 << 22


class TileList(NamedTuple):
    """The tiles of one batch element and head, with patterns that may still repeat."""

    counts: Tensor  # int64 [rows]
    columns: Tensor  # int32 [tiles]
    kinds: Tensor  # int32 [tiles]: -1 or an index into `bits`
    bits: Tensor  # int32 [patterns, tile_q, tile_k / 32]


class _Grid(NamedTuple):
    """The tiles of a mask of this size."""

    mask: Mask
    q_len: int
    kv_len: int
    tile: tuple[int, int]
    device: torch.device

    @property
    def rows(self) -> int:
        return -(-self.q_len // self.tile[0])

    @property
    def columns(self) -> int:
        return -(-self.kv_len // self.tile[1])

    def box(self, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q0, k0 = row * self.tile[0], column * self.tile[1]
        q1 = (q0 + self.tile[0]).clamp(max=self.q_len)
        return q0, q1, k0, (k0 + self.tile[1]).clamp(max=self.kv_len)


def find_tiles(
    mask: Mask, q_len: int, kv_len: int, tile: tuple[int, int], device: torch.device
) -> TileList:
    """The mask is the same for all batch elements and heads; its tables are on the device."""
    grid = _Grid(mask, q_len, kv_len, tile, device)
    full, mixed = _classified(grid)
    which, chosen = _representatives(grid, mixed)
    bits, kinds = _evaluated(grid, chosen)
    found = kinds[which]
    # Boxes that the bounds could not tell, but that are full after all. Empty ones are left out.
    full = torch.cat((full, mixed[found == FULL])).sort().values
    names = (kinds == MIXED).cumsum(0) - 1
    partial = found == MIXED
    return _listed(grid, full, mixed[partial], names[which[partial]], bits[kinds == MIXED])


def _classified(grid: _Grid) -> tuple[Tensor, Tensor]:
    """The places (row * columns + column) of full and of mixed boxes, ascending."""
    step = max(1, BOXES.get(grid.device.type, MANY_BOXES) // grid.columns)
    column = torch.arange(grid.columns, dtype=torch.int32, device=grid.device)
    zero = torch.zeros((), dtype=torch.int32, device=grid.device)
    places: tuple[list[Tensor], list[Tensor]] = ([], [])
    for start in range(0, grid.rows, step):
        stop = min(start + step, grid.rows)
        row = torch.arange(start, stop, dtype=torch.int32, device=grid.device)[:, None]
        kinds = grid.mask.classify(*grid.box(row, column), zero, zero)
        kinds = kinds.expand(stop - start, grid.columns)
        if grid.kv_len % grid.tile[1]:  # keys beyond the end are off: not full
            kinds = kinds.clone()
            kinds[:, -1].clamp_(max=MIXED)
        for kind, found in zip((FULL, MIXED), places, strict=True):
            found.append((kinds == kind).flatten().nonzero().flatten() + start * grid.columns)
    return torch.cat(places[0]), torch.cat(places[1])


def _representatives(grid: _Grid, mixed: Tensor) -> tuple[Tensor, Tensor]:
    """For each mixed box a number, and the place of a box that looks the same for each number."""
    if not len(mixed):
        return mixed, mixed
    row, column = _row_and_column(grid, mixed)
    q0, q1, k0, k1 = grid.box(row, column)
    cut = (row == grid.rows - 1).int() * 2 + (column == grid.columns - 1)
    keys = _one_column((cut, *grid.mask.signature(q0, q1, k0, k1)), len(mixed))
    found, which = keys.unique(return_inverse=True)
    chosen = torch.empty_like(found)
    chosen[which] = mixed
    return which, chosen


def _one_column(columns: Sequence[Tensor], length: int) -> Tensor:
    """int64 [length]: equal where all columns are equal. Exact: digits of mixed radix."""
    keys = torch.zeros(length, dtype=torch.int64, device=columns[0].device)
    size = 1
    for column in columns:
        low, high = (int(x) for x in column.aminmax())
        base = high - low + 1
        if base == 1:
            continue
        if size * base >= 2**62:  # too many digits: number what is there
            found, keys = keys.unique(return_inverse=True)
            size = len(found)
        keys = keys * base + (column.long() - low)
        size *= base
    return keys


def _evaluated(grid: _Grid, places: Tensor) -> tuple[Tensor, Tensor]:
    """Bitmaps of these boxes, int32 [boxes, tile_q, tile_k / 32], and their kinds, int8."""
    tile_q, tile_k = grid.tile
    bits = torch.empty((len(places), tile_q, tile_k // 32), dtype=torch.int32, device=grid.device)
    kinds = torch.empty(len(places), dtype=torch.int8, device=grid.device)
    step = ENTRIES // (tile_q * tile_k)
    for start in range(0, len(places), step):
        part = slice(start, start + step)
        allowed, beyond = _entries(grid, places[part])
        bits[part] = bitmaps.pack(allowed)
        full = ((bits[part] == -1) | beyond).flatten(1).all(1)
        kinds[part] = kinds_of((bits[part] == 0).flatten(1).all(1), full)
    return bits, kinds


def _entries(grid: _Grid, places: Tensor) -> tuple[Tensor, Tensor]:
    """bool [boxes, tile_q, tile_k]; and [boxes, tile_q, 1]: which queries are beyond the end."""
    (row, column), (tile_q, tile_k) = _row_and_column(grid, places), grid.tile
    zero = torch.zeros((), dtype=torch.int32, device=grid.device)
    queries = torch.arange(tile_q, dtype=torch.int32, device=grid.device)
    keys = torch.arange(tile_k, dtype=torch.int32, device=grid.device)
    q = row[:, None, None] * tile_q + queries[:, None]
    k = column[:, None, None] * tile_k + keys
    # Predicates need not know what is beyond the end.
    inside = (q.clamp(max=grid.q_len - 1), k.clamp(max=grid.kv_len - 1))
    allowed = grid.mask.predicate(zero, zero, *inside).expand(len(places), tile_q, tile_k)
    if grid.q_len % tile_q or grid.kv_len % tile_k:
        allowed = allowed & (q < grid.q_len) & (k < grid.kv_len)
    return allowed, q >= grid.q_len


def _row_and_column(grid: _Grid, places: Tensor) -> tuple[Tensor, Tensor]:
    row = places // grid.columns
    return row.int(), (places - row * grid.columns).int()


def _listed(grid: _Grid, full: Tensor, partial: Tensor, names: Tensor, bits: Tensor) -> TileList:
    """Row by row: full tiles, then partial ones."""
    full_row, full_column = _row_and_column(grid, full)
    partial_row, partial_column = _row_and_column(grid, partial)
    full_counts, partial_counts = (
        row.bincount(minlength=grid.rows) for row in (full_row, partial_row)
    )
    counts = full_counts + partial_counts
    start = counts.cumsum(0) - counts
    columns = torch.empty(len(full) + len(partial), dtype=torch.int32, device=grid.device)
    kinds = torch.full_like(columns, -1)
    at_full = start[full_row] + _ranks(full_counts)
    at_partial = (start + full_counts)[partial_row] + _ranks(partial_counts)
    columns[at_full] = full_column
    columns[at_partial] = partial_column
    kinds[at_partial] = names.int()
    return TileList(counts, columns, kinds, bits)


def spread(counts: Tensor) -> Tensor:
    """0 counts[0] times, 1 counts[1] times, and so on."""
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def _ranks(counts: Tensor) -> Tensor:
    """0 to counts[0] - 1, 0 to counts[1] - 1, and so on."""
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.arange(len(starts), device=counts.device) - starts
