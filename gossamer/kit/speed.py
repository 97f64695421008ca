"""How much faster than its peer an op is: one number per point, and what sums them up."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gossamer.bench.peers import Peers, defaults
from gossamer.bench.record import Record, read_records


@dataclass(frozen=True)
class Point:
    """One point of a suite: ours (the backend that users get) and eager or the fastest peer."""

    shape: tuple[int, ...]
    dtype: str
    variant: str
    backend: str
    peer: str
    ours_ms: float
    peer_ms: float

    @property
    def speedup(self) -> float:
        return self.peer_ms / self.ours_ms

    def __str__(self) -> str:
        parts = "x".join(map(str, self.shape)), self.dtype, self.variant
        return " ".join(part for part in parts if part)


def points_of(records: Sequence[Record]) -> list[Point]:
    """The points at which an op and a peer were measured.

    Ours is the default backend: the first measured one in the order in which calls choose. The peer
    is "eager" of the same point; where a suite has none, the fastest peer of the point or, as for
    compressed caches with a dense one, of its shape and dtype.
    """
    eager = {r.point: r for r in records if r.backend == "eager"}
    fastest = Peers(records)
    found = []
    for r in defaults(records):
        peer = eager.get(r.point) or fastest(r)
        if peer is not None:
            times = (r.backend, peer.backend, r.median_ms, peer.median_ms)
            found.append(Point(tuple(r.shape), r.dtype, r.variant, *times))
    return found


def recorded(path: Path) -> list[Point]:
    """The points of a file of results; [] where there is no file, or it has no peers.

    Of masked attention every record is one of many candidates at a point, which is no speed of the
    op. Raises ValueError for a file that is broken.
    """
    records = read_records(path) if path.is_file() else []
    return [] if any("candidate=" in r.variant for r in records) else points_of(records)


def mean_speedup(points: Iterable[Point]) -> float:
    """The geometric mean: twice as fast here and half as fast there is 1."""
    logarithms = [math.log(p.speedup) for p in points]
    return math.exp(sum(logarithms) / len(logarithms))


def worst(points: Sequence[Point]) -> Point:
    """The point with the least speed-up."""
    return min(points, key=lambda p: p.speedup)


def peer_names(points: Iterable[Point]) -> str:
    """What the op was compared with."""
    return " or ".join(sorted({p.peer for p in points}))


def summary(points: Sequence[Point]) -> str:
    """One line: mean, worst, what with."""
    if not points:
        return "measured, but not as one speed over a peer"
    least = worst(points)
    mean = mean_speedup(points)
    count = f"{len(points)} points" if len(points) > 1 else "one point"
    return (
        f"{mean:.2f}x as fast as {peer_names(points)} in the geometric mean of {count}, "
        f"{least.speedup:.2f}x at worst ({least})"
    )
