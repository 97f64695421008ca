"""How long a candidate takes: linear in a few facts of a call, with coefficients of the device.

Coefficients are microseconds and never negative, so that more work never looks cheaper. Work is
counted for each place (an SM of a GPU, a thread of a CPU), so that coefficients of one device say
something about a larger or smaller one of its kind.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossamer.attention.candidates import Call, Candidate
from gossamer.masks import TileMap
from gossamer.masks.work import QUERIES_OF_SM

Counts = NDArray[np.int64]
STRIP = 16  # queries of a partial tile that kernels skip together

FEATURES = {
    # launch: of anything. bytes: MB to read and write.
    # For each place (SM or thread): full, partial: tiles; strips: partial ones as far as they are
    # not skipped; pairs: thousands that the mask shows; far: tiles of keys that no cache holds
    # until the next row needs them; pieces: work items; merged: how many more of them cuts make.
    # One after another: longest: tiles of the longest piece; rounds, busiest: tiles of a slot where
    # a place runs several pieces at the same time, or one; parts: of the longest row that is cut.
    # cut: 1 where rows are cut.
    "block": (
        *("launch", "bytes", "full", "partial", "strips", "pairs", "far", "pieces", "merged"),
        *("longest", "rounds", "busiest", "parts", "cut"),
    ),
    "rows": ("launch", "bytes", "queries", "pairs"),
    # pairs: all of them, half where the mask is causal; causal: once more in that case, which costs
    # more than half. rounds: tiles of 128 keys one after another where a place runs one tile of 128
    # queries.
    "sdpa": ("launch", "pairs", "causal", "rounds"),
}
SDPA_TILE = 128
CACHE_BYTES = 50e6  # of the last level, about
# Microseconds that a call takes of the host's time, on the machine of the H200: a C++ op, torch's
# SDPA, Triton's launcher. What the device does not hide of it is counted by HOST_SHARE to rank
# candidates: it decides between those that take a GPU about as long.
HOST = {"cuda": 17.0, "flash": 31.0, "cudnn": 27.0, "mask": 31.0, "triton": 107.0}
HOST_CUT = 2.0  # more where rows are cut: memory for their parts
HOST_SHARE = 0.2
RESIDENT = 16384  # values of queries that an SM holds: 4 items of 64 queries at head_dim 64


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
        """Batch elements times heads of a call that share the map."""
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


@dataclass(frozen=True)
class Model:
    """Coefficients by group: a family of candidates at a head_dim. places: of the device."""

    places: int
    groups: Mapping[str, tuple[float, ...]]

    def microseconds(self, candidate: Candidate, call: Call, facts: TileFacts) -> float | None:
        """The cost; None where nothing is known about such candidates."""
        found = self._group(candidate, call.head_dim)
        if found is None:
            return None
        head_dim, coefficients = found
        numbers = features(candidate, call, facts, self.places)
        cost = sum(c * x for c, x in zip(coefficients, numbers, strict=True))
        launch = coefficients[0]
        # Of another head_dim than was measured: all but the launch grows with it.
        return launch + (cost - launch) * call.head_dim / head_dim

    def rank(self, candidate: Candidate, call: Call, facts: TileFacts) -> float:
        """What candidates are compared by; infinite where nothing is known."""
        cost = self.microseconds(candidate, call, facts)
        if cost is None:
            return math.inf
        return cost + HOST_SHARE * max(0.0, self._host(candidate) - cost)

    def _host(self, candidate: Candidate) -> float:
        """What the host needs to issue a call; nothing on a CPU, where it is all in the cost."""
        if not any("cuda" in name or "triton" in name for name in self.groups):
            return 0.0
        return HOST.get(candidate.backend, 0.0) + (HOST_CUT if candidate.limit else 0.0)

    def _group(self, candidate: Candidate, head_dim: int) -> tuple[int, tuple[float, ...]] | None:
        """The coefficients of the nearest head_dim that there are some for."""
        start = f"{candidate.family} d"
        known = [int(name.removeprefix(start)) for name in self.groups if name.startswith(start)]
        if not known:
            return None
        nearest = min(known, key=lambda known_dim: abs(math.log(known_dim / head_dim)))
        return nearest, self.groups[f"{start}{nearest}"]


def group_of(candidate: Candidate, head_dim: int) -> str:
    return f"{candidate.family} d{head_dim}"


def features(candidate: Candidate, call: Call, facts: TileFacts, places: int) -> list[float]:
    """The numbers that FEATURES names for the candidate's kernel. facts: of its `facts_tile`."""
    if candidate.kernel == "sdpa":
        return [1.0, *_sdpa(candidate, call, facts, places)]
    start = [1.0, call.nbytes / 1e6]
    if candidate.kernel == "block":
        return start + _block(candidate, call, facts, places)
    queries = call.batch * call.heads * call.q_len
    return [*start, queries / places, _pairs(call, facts) / places]


def _block(candidate: Candidate, call: Call, facts: TileFacts, places: int) -> list[float]:
    replicas = facts.replicas(call.batch, call.heads)
    share = replicas / places
    full, partial = share * float(facts.full.sum()), share * float(facts.partial.sum())
    keys = 2 * call.batch * call.kv_heads * call.kv_len * call.head_dim * call.itemsize
    pieces = facts.pieces(candidate.limit)
    cut = len(pieces) - len(facts.rows)
    on_gpu = candidate.backend in ("cuda", "triton")
    items = max(1, RESIDENT // (candidate.tile[0] * call.head_dim)) if on_gpu else 1
    return [
        full,
        partial,
        share * facts.strips,
        _pairs(call, facts) / places,
        (full + partial) * max(0.0, 1 - CACHE_BYTES / keys),
        share * len(pieces),
        share * cut,
        float(pieces[0]),
        _makespan(pieces, replicas, places * items),
        _makespan(pieces, replicas, places),
        float(-(-facts.rows.max() // candidate.limit)) if cut else 0.0,
        float(cut > 0),
    ]


def _makespan(pieces: Counts, replicas: int, slots: int) -> float:
    """Tiles one after another when slots take the longest piece next: a lower bound.

    That is an equal share for each slot; and (j + 1) times the piece number j * slots, since some
    slot has j + 1 of those that are as long. Pieces are sorted, and there are `replicas` of each.
    """
    firsts = np.arange(0, len(pieces) * replicas, slots)
    rounds = np.arange(1, len(firsts) + 1)
    shared = float(pieces.sum()) * replicas / slots
    return max(shared, float((rounds * pieces[firsts // replicas]).max()))


def _pairs(call: Call, facts: TileFacts) -> float:
    """Thousands of pairs of query and key that the mask shows, in all heads."""
    return call.batch * call.heads * call.q_len * call.kv_len * facts.density / 1e3


def _sdpa(candidate: Candidate, call: Call, facts: TileFacts, places: int) -> list[float]:
    """A mask that is given as a tensor takes as long as none."""
    heads, rows = call.batch * call.heads, -(-call.q_len // SDPA_TILE)
    pairs = heads * call.q_len * call.kv_len / 1e3 / places
    causal = candidate.backend != "mask" and facts.density < 1
    rounds = -(-heads * rows // places) * -(-call.kv_len // SDPA_TILE)
    return [pairs / 2, pairs / 2, rounds / 2] if causal else [pairs, 0.0, rounds]
