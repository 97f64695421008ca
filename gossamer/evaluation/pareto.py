"""Which of several things nothing else beats in both size and error."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Thing = TypeVar("Thing", bound=Hashable)


def front(points: Mapping[Thing, tuple[float, float]]) -> list[Thing]:
    """Of (size, error): those with a smaller error than all that are not larger, small first."""
    best: list[Thing] = []
    for thing in sorted(points, key=lambda t: points[t]):
        if not best or points[thing][1] < points[best[-1]][1]:
            best.append(thing)
    return best


def near_front(points: Mapping[Thing, tuple[float, float]], factor: float) -> list[Thing]:
    """Those whose error is at most `factor` times the least of all that are not larger."""
    kept: list[Thing] = []
    least = float("inf")
    for thing in sorted(points, key=lambda t: points[t]):
        least = min(least, points[thing][1])
        if points[thing][1] <= factor * least:
            kept.append(thing)
    return kept


def spread(
    things: Sequence[Thing],
    sizes: Mapping[Thing, float],
    errors: Mapping[Thing, float],
    kinds: Mapping[Thing, Hashable],
    count: int,
) -> list[Thing]:
    """At most `count` of them, from all sizes and of all kinds.

    The range of sizes is cut into `count` equal parts. Of each part comes the one with the least
    error among the kinds that were taken least often so far.
    """
    if len(things) <= count:
        return list(things)
    low, high = (end(sizes[t] for t in things) for end in (min, max))
    parts: list[list[Thing]] = [[] for _ in range(count)]
    for thing in things:
        place = (sizes[thing] - low) / (high - low) if high > low else 0.0
        parts[min(int(place * count), count - 1)].append(thing)
    taken: list[Thing] = []
    while len(taken) < count:
        for part in parts:
            if part and len(taken) < count:
                often = {t: sum(kinds[t] == kinds[other] for other in taken) for t in part}
                best = min(part, key=lambda t: (often[t], errors[t]))
                part.remove(best)
                taken.append(best)
    return taken
