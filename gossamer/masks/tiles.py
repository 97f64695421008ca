"""A mask as tiles: what block-sparse attention kernels read."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.masks import bitmaps
from gossamer.masks.base import Device, Mask
from gossamer.masks.checks import as_device, sizes
from gossamer.masks.tile_lists import TileList, find_tiles, spread

TILE_Q, TILE_K = (16, 32, 64, 128), (32, 64, 128)
ENTRIES = 1 << 24  # of tiles that `key_lists` unpacks at a time


class TileCounts(NamedTuple):
    """How many tiles there are of each kind, and the share of entries that are allowed."""

    full: int
    partial: int
    empty: int
    density: float


@dataclass(frozen=True, eq=False)
class TileMap:
    """Which tiles of a mask hold anything, row by row; `row = (b * heads + h) * rows + r`.

    Tiles of key blocks beyond kv_len are partial, their bits there are off, and so are those of
    queries beyond q_len. A tile of which only queries are cut off can be full.
    """

    q_len: int
    kv_len: int
    offsets: Tensor  # int32 [batch * heads * rows + 1]: where the tiles of a row start
    tiles: Tensor  # int32 [2, tiles]: `columns` and `kinds`
    bits: Tensor  # int32 [patterns, tile_q, tile_k / 32]: bit c of word w is key 32 * w + c
    order: Tensor  # int32 [batch, heads, rows]: numbers of rows, those with most tiles first

    @classmethod
    def build(
        cls,
        mask: Mask,
        q_len: int,
        kv_len: int,
        tile: tuple[int, int] = (64, 64),
        device: Device = None,
    ) -> "TileMap":
        """Computed on the device; the mask's tables are moved there."""
        sizes("TileMap", q_len, kv_len)
        _check_tile(tile)
        mask.check(q_len, kv_len)
        target = as_device(device)
        batch, heads = mask.batch or 1, mask.heads or 1
        moved = mask.to(target)
        parts = [moved.at(b, h) for b in range(batch) for h in range(heads)]
        # Heads with equal masks share the work.
        size = (q_len, kv_len, tile, target)
        found = {part: find_tiles(part, *size) for part in dict.fromkeys(parts)}
        lists = [found[part] for part in parts]
        offsets, tiles, bits, order = _joined(lists, tile)
        return cls(q_len, kv_len, offsets, tiles, bits, order.view(batch, heads, -1))

    @property
    def tile_q(self) -> int:
        return self.bits.shape[1]

    @property
    def tile_k(self) -> int:
        return 32 * self.bits.shape[2]

    @property
    def batch(self) -> int:
        """1 where all batch elements see the same."""
        return self.order.shape[0]

    @property
    def heads(self) -> int:
        """1 where all query heads see the same."""
        return self.order.shape[1]

    @property
    def columns(self) -> Tensor:
        """int32 [tiles]: key // tile_k; in a row full ones first, each ascending."""
        return self.tiles[0]

    @property
    def kinds(self) -> Tensor:
        """int32 [tiles]: -1 for a full tile, else its pattern's index in `bits`."""
        return self.tiles[1]

    @property
    def rows(self) -> int:
        """Rows of tiles of one head."""
        return self.order.shape[2]

    @property
    def device(self) -> torch.device:
        return self.offsets.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def to(self, device: Device) -> "TileMap":
        target = as_device(device)
        moved: dict[str, Any] = {name: put(x, target) for name, x in self._tensors().items()}
        return replace(self, **moved)

    def counts(self) -> TileCounts:
        """Waits for the device."""
        columns = -(-self.kv_len // self.tile_k)
        total = self.batch * self.heads * self.rows * columns
        partial = int((self.kinds >= 0).sum())
        full = self.kinds.numel() - partial
        entries = self.batch * self.heads * self.q_len * self.kv_len
        return TileCounts(full, partial, total - full - partial, self._allowed() / entries)

    def dense(self) -> Tensor:
        """bool [batch, heads, q_len, kv_len]."""
        columns = -(-self.kv_len // self.tile_k)
        shape = (self.batch * self.heads * self.rows, columns, self.tile_q, self.tile_k)
        out = torch.zeros(shape, dtype=torch.bool, device=self.device)
        patterns = torch.cat((bitmaps.unpack(self.bits), torch.ones_like(out[:1, 0])))
        out[self.row_of_tiles(), self.columns.long()] = patterns[self.kinds.long()]
        whole_tiles = out.transpose(1, 2).reshape(
            self.batch, self.heads, self.rows * self.tile_q, columns * self.tile_k
        )
        return whole_tiles[:, :, : self.q_len, : self.kv_len].contiguous()

    def row_of_tiles(self) -> Tensor:
        """int64 [tiles]: the row of each tile."""
        return spread(self.offsets.diff().long())

    def key_lists(self) -> tuple[Tensor, Tensor]:
        """row_offsets and keys of `gossamer.ops.masked_attention_rows`. Waits for the device."""
        full = torch.ones_like(self.bits[:1]).neg()  # all bits
        patterns = bitmaps.unpack(torch.cat((self.bits, full)))  # kind -1 is the last one
        rows = self.row_of_tiles()
        step = max(1, ENTRIES // (self.tile_q * self.tile_k))
        parts = [slice(i, i + step) for i in range(0, self.columns.numel(), step)]
        places = [self._places(patterns, rows, part) for part in parts]
        found = (torch.cat(places) if places else rows.new_empty(0)).sort().values
        queries = self.batch * self.heads * self.q_len
        counts = (found // self.kv_len).bincount(minlength=queries)
        offsets = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        return offsets.int(), (found % self.kv_len).int()

    def _places(self, patterns: Tensor, row_of_tiles: Tensor, part: slice) -> Tensor:
        """int64: query * kv_len + key of what some tiles allow; queries count through all heads."""
        tile, r, c = patterns[self.kinds[part].long()].nonzero(as_tuple=True)
        row = row_of_tiles[part][tile]
        query = row % self.rows * self.tile_q + r
        key = self.columns[part].long()[tile] * self.tile_k + c
        inside = (query < self.q_len) & (
            key < self.kv_len
        )  # full tiles reach beyond the last query
        places = (row // self.rows * self.q_len + query) * self.kv_len + key
        return places[inside]

    def same_mask(self, other: "TileMap") -> bool:
        """Whether a map with tiles of the same size allows the same. Waits for the device."""
        if self.offsets.shape != other.offsets.shape or self.tiles.shape != other.tiles.shape:
            return False
        partial = self.kinds >= 0
        if not (
            torch.equal(self.offsets, other.offsets)
            and torch.equal(self.columns, other.columns)
            and torch.equal(partial, other.kinds >= 0)
        ):
            return False
        mine, theirs = self.kinds[partial].long(), other.kinds[partial].long()
        # Maps of one mask name patterns differently: compare each pair of names once.
        names = (mine * len(other.bits) + theirs).unique()
        mine, theirs = names // len(other.bits), names % len(other.bits)
        return torch.equal(self.bits[mine], other.bits[theirs])

    def _allowed(self) -> int:
        """How many entries are allowed."""
        full = self.kinds < 0
        starts = (self.row_of_tiles()[full] % self.rows) * self.tile_q
        rows = (self.q_len - starts).clamp(max=self.tile_q)
        inside = bitmaps.ones(self.bits).sum((1, 2))[self.kinds[~full].long()]
        return int(rows.sum()) * self.tile_k + int(inside.sum())

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def put(x: Tensor, device: torch.device) -> Tensor:
    """On the device. From the host it is pinned first, or the copy would wait for the GPU."""
    if x.device == device:
        return x
    host = x.pin_memory() if device.type == "cuda" and x.device.type == "cpu" else x
    return host.to(device, non_blocking=True)


def _check_tile(tile: tuple[int, int]) -> None:
    for name, size, valid in zip(("tile_q", "tile_k"), tile, (TILE_Q, TILE_K), strict=True):
        if size not in valid:
            listed = ", ".join(map(str, valid))
            raise ValueError(f"TileMap: {name} is {size}; must be one of {listed}")


def _joined(lists: list[TileList], tile: tuple[int, int]) -> list[Tensor]:
    """offsets, tiles, bits, order of all heads."""
    unique = list({id(part): part for part in lists}.values())
    bits, which = bitmaps.distinct(torch.cat([part.bits for part in unique]))
    parts = which.split([len(part.bits) for part in unique])
    names = {id(part): place for part, place in zip(unique, parts, strict=True)}
    counts = torch.cat([part.counts for part in lists])
    if int(counts.sum()) >= 2**31:
        raise ValueError(f"TileMap: {int(counts.sum())} tiles; must be fewer than {2**31}")
    kinds = [_named(part.kinds, names[id(part)]) for part in lists]
    return [
        torch.cat((counts.new_zeros(1), counts.cumsum(0))).int(),
        torch.stack((torch.cat([part.columns for part in lists]), torch.cat(kinds))),
        bits if len(bits) else bits.new_zeros(1, tile[0], tile[1] // 32),
        counts.argsort(descending=True, stable=True).int(),
    ]


def _named(kinds: Tensor, names: Tensor) -> Tensor:
    """Partial tiles get the names of their patterns among those of all heads."""
    with_full = torch.cat((names, names.new_full((1,), -1)))  # kind -1 is the last one
    return with_full[kinds.long()].int()
