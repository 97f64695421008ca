"""How long a way takes: linear in a few facts of a call, with coefficients of the device.

Coefficients are microseconds and never negative, so that more work never looks cheaper. Work is
counted for each place (an SM of a GPU, a thread of a CPU), so that coefficients of one device say
something about a larger or smaller one of its kind.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gossamer.attention.facts import Counts, TileFacts
from gossamer.attention.ways import Call, Way

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
# ways: it decides between those that take a GPU about as long.
HOST = {"cuda": 17.0, "flash": 31.0, "cudnn": 27.0, "mask": 31.0, "triton": 107.0}
HOST_CUT = 2.0  # more where rows are cut: memory for their parts
HOST_SHARE = 0.2
RESIDENT = 16384  # values of queries that an SM holds: 4 items of 64 queries at head_dim 64


@dataclass(frozen=True)
class Model:
    """Coefficients by group: a family of ways at a head_dim. places: of the device."""

    places: int
    groups: Mapping[str, tuple[float, ...]]

    def microseconds(self, way: Way, call: Call, facts: TileFacts) -> float | None:
        """The cost; None where nothing is known about such ways."""
        found = self._group(way, call.head_dim)
        if found is None:
            return None
        head_dim, coefficients = found
        numbers = features(way, call, facts, self.places)
        cost = sum(c * x for c, x in zip(coefficients, numbers, strict=True))
        launch = coefficients[0]
        # Of another head_dim than was measured: all but the launch grows with it.
        return launch + (cost - launch) * call.head_dim / head_dim

    def rank(self, way: Way, call: Call, facts: TileFacts) -> float:
        """What ways are compared by; infinite where nothing is known."""
        cost = self.microseconds(way, call, facts)
        if cost is None:
            return math.inf
        return cost + HOST_SHARE * max(0.0, self._host(way) - cost)

    def _host(self, way: Way) -> float:
        """What the host needs to issue a call; nothing on a CPU, where it is all in the cost."""
        if not any("cuda" in name or "triton" in name for name in self.groups):
            return 0.0
        return HOST.get(way.backend, 0.0) + (HOST_CUT if way.limit else 0.0)

    def _group(self, way: Way, head_dim: int) -> tuple[int, tuple[float, ...]] | None:
        """The coefficients of the nearest head_dim that there are some for."""
        start = f"{way.family} d"
        known = [int(name.removeprefix(start)) for name in self.groups if name.startswith(start)]
        if not known:
            return None
        nearest = min(known, key=lambda known_dim: abs(math.log(known_dim / head_dim)))
        return nearest, self.groups[f"{start}{nearest}"]


def group_of(way: Way, head_dim: int) -> str:
    return f"{way.family} d{head_dim}"


def features(way: Way, call: Call, facts: TileFacts, places: int) -> list[float]:
    """The numbers that FEATURES names for the way's kernel. facts: of the way's tile, if any."""
    if way.kernel == "sdpa":
        return [1.0, *_sdpa(way, call, facts, places)]
    start = [1.0, call.nbytes / 1e6]
    if way.kernel == "block":
        return start + _block(way, call, facts, places)
    queries = call.batch * call.heads * call.q_len
    return [*start, queries / places, _pairs(call, facts) / places]


def _block(way: Way, call: Call, facts: TileFacts, places: int) -> list[float]:
    replicas = facts.replicas(call.batch, call.heads)
    share = replicas / places
    full, partial = share * float(facts.full.sum()), share * float(facts.partial.sum())
    keys = 2 * call.batch * call.kv_heads * call.kv_len * call.head_dim * call.itemsize
    pieces = facts.pieces(way.limit)
    cut = len(pieces) - len(facts.rows)
    on_gpu = way.backend in ("cuda", "triton")
    items = max(1, RESIDENT // (way.tile[0] * call.head_dim)) if on_gpu else 1
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
        float(-(-facts.rows.max() // way.limit)) if cut else 0.0,
        float(cut > 0),
    ]


def _makespan(pieces: Counts, replicas: int, slots: int) -> float:
    """Tiles one after another when slots take the longest piece next: at least so many.

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


def _sdpa(way: Way, call: Call, facts: TileFacts, places: int) -> list[float]:
    """A mask that is given as a tensor takes as long as none."""
    heads, rows = call.batch * call.heads, -(-call.q_len // SDPA_TILE)
    pairs = heads * call.q_len * call.kv_len / 1e3 / places
    causal = way.backend != "mask" and facts.density < 1
    rounds = -(-heads * rows // places) * -(-call.kv_len // SDPA_TILE)
    return [pairs / 2, pairs / 2, rounds / 2] if causal else [pairs, 0.0, rounds]
