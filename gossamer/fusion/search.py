"""Stage 1 of tuning: which operators of a region become one, by moves that were timed."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gossamer.fusion.cost import LONGEST, predicted_plan
from gossamer.fusion.kernels import fusion_of
from gossamer.fusion.legality import why_illegal
from gossamer.fusion.plan import Plan
from gossamer.fusion.regions import Region

GAIN = 0.99  # a move is taken if it leaves no more of the time: less is noise


@dataclass
class Search:
    """The best plan of a region until now. times: microseconds by plan key."""

    region: Region
    best: Plan
    times: dict[str, float] = field(default_factory=dict)

    @property
    def us(self) -> float:
        return self.times[self.best.key]

    @property
    def unfused_us(self) -> float:
        return self.times[Plan.unfused(self.best.operators).key]

    @property
    def gain(self) -> float:
        """Microseconds saved in the whole model."""
        return (self.unfused_us - self.us) * len(self.region.starts)


@dataclass(frozen=True)
class Move:
    """A plan next to another one.

    expand: operators join a segment; steal: they leave another one for it; split: the operators of
    a segment stand alone.
    """

    name: str
    plan: Plan


def moves(plan: Plan, fused: Sequence[range], generator: random.Random) -> list[Move]:
    """Plans next to this one, in random order. fused: all segments that have a kernel."""
    found = list(_moves(plan, fused))
    generator.shuffle(found)
    return found


def _moves(plan: Plan, fused: Sequence[range]) -> Iterator[Move]:
    segments = plan.segments
    for segment in segments:
        if len(segment) > 1:
            singles = [range(i, i + 1) for i in segment]
            yield Move("split", Plan.of_segments(_with(segments, segment, singles)))
    for joined in fused:
        if joined in segments:
            continue
        touched = [s for s in segments if s.start < joined.stop and joined.start < s.stop]
        whole = all(joined.start <= s.start and s.stop <= joined.stop for s in touched)
        around = range(touched[0].start, touched[-1].stop)
        rest = [range(i, i + 1) for i in range(around.start, joined.start)]
        tail = [range(i, i + 1) for i in range(joined.stop, around.stop)]
        parts = [*rest, joined, *tail]
        plan_ = Plan.of_segments(_with(segments, around, parts))
        yield Move("expand" if whole else "steal", plan_)


def _with(segments: Sequence[range], place: range, parts: Sequence[range]) -> list[range]:
    """Segments with those of `place` replaced."""
    before = [s for s in segments if s.stop <= place.start]
    return [*before, *parts, *(s for s in segments if s.start >= place.stop)]


def fused_segments(region: Region) -> list[range]:
    """Every run of operators that is legal and has a kernel."""
    captured = region.captured()
    operators = captured.operators
    found = []
    for start in range(len(operators)):
        for stop in range(start + 2, min(start + LONGEST, len(operators)) + 1):
            segment = operators[start:stop]
            if why_illegal(segment, captured.limits) is None and fusion_of(segment) is not None:
                found.append(range(start, stop))
    return found


def search(
    region: Region,
    measure: Callable[[Region, Plan], float | None],
    generator: random.Random,
    tried: Callable[[Search, Move], None] = lambda found, move: None,
) -> Search | None:
    """Begin with the better of unfused and predicted, and take every move that gains.

    measure: microseconds, or None when time is up. None where not even these two were timed.
    """
    found = Search(region, Plan.unfused(region.length))
    for plan in (found.best, predicted_plan(region.captured())):
        if not _timed(found, plan, measure):
            return None
        if found.times[plan.key] < found.us:
            found.best = plan
    fused = fused_segments(region)
    improved = True
    while improved:
        improved = False
        for move in moves(found.best, fused, generator):
            if move.plan.key in found.times:
                continue
            if not _timed(found, move.plan, measure):
                return found
            tried(found, move)
            if found.times[move.plan.key] <= GAIN * found.us:
                found.best, improved = move.plan, True
                break
    return found


def _timed(found: Search, plan: Plan, measure: Callable[[Region, Plan], float | None]) -> bool:
    """Whether the plan's time is known now."""
    if plan.key not in found.times:
        took = measure(found.region, plan)
        if took is None:
            return False
        found.times[plan.key] = took
    return True
