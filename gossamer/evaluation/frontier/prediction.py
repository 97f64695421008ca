"""What caches will cost in NLL, from cheap errors of all sides and probes of some.

Over the sides of K, or of V, the change in NLL follows the screening's error by a power law, up to
a factor that kinds of sides have in common (a rank by gradients is better than its error says).
A probe is noisy, so what it says and what the law says are weighed by how sure they are. K and V
are compressed independently: their costs add up.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from statistics import fmean

from gossamer.evaluation.statistics import Change
from gossamer.kv import Dense, Side

LAW_SPREAD = 0.3  # relative; how far sides of one kind lie from the law
LEAST = 1e-9  # of errors and changes whose logarithms are taken
SLOPES = (0.5, 1.5)


def kind_of(side: Side) -> Hashable:
    """Sides whose errors can be compared with each other."""
    return isinstance(side.layout, Dense), side.basis, side.policy


@dataclass(frozen=True)
class Law:
    """log change = log error * slope + offset + its kind's."""

    slope: float
    offset: float
    kinds: Mapping[Hashable, float]

    @classmethod
    def of(cls, errors: Mapping[Side, float], probes: Mapping[Side, Change]) -> "Law":
        points = {
            side: (math.log(max(errors[side], LEAST)), math.log(_positive(change)))
            for side, change in probes.items()
        }
        if not points:
            return cls(1.0, 0.0, {})
        slope, offset = _line(list(points.values()))
        rest: dict[Hashable, list[float]] = {}
        for side, (x, y) in points.items():
            rest.setdefault(kind_of(side), []).append(y - slope * x - offset)
        kinds = {kind: sum(values) / (len(values) + 1) for kind, values in rest.items()}
        return cls(slope, offset, kinds)

    def __call__(self, side: Side, error: float) -> float:
        own = self.kinds.get(kind_of(side), 0.0)
        return math.exp(self.slope * math.log(max(error, LEAST)) + self.offset + own)


def predict(errors: Mapping[Side, float], probes: Mapping[Side, Change]) -> dict[Side, float]:
    """The change in NLL of every side that has an error."""
    law = Law.of(errors, probes)
    return {side: _weighed(law(side, error), probes.get(side)) for side, error in errors.items()}


def _weighed(expected: float, probe: Change | None) -> float:
    if probe is None or math.isinf(probe.error):
        return expected
    sure, surer = (LAW_SPREAD * expected) ** -2, max(probe.error, LEAST) ** -2
    return max((expected * sure + probe.value * surer) / (sure + surer), 0.0)


def _positive(probe: Change) -> float:
    """Noise can make probes of good sides negative; half its size is as good as they can look."""
    noise = 0.0 if math.isinf(probe.error) else probe.error / 2
    return max(probe.value, noise, LEAST)


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Slope and offset by least squares; slope 1 where points cannot tell."""
    x, y = (fmean(p[i] for p in points) for i in (0, 1))
    spread = math.fsum((p[0] - x) ** 2 for p in points)
    slope = 1.0
    if len(points) > 2 and spread > 0:
        slope = math.fsum((p[0] - x) * (p[1] - y) for p in points) / spread
        slope = min(max(slope, SLOPES[0]), SLOPES[1])
    return slope, y - slope * x


Fits = Callable[[Side, Side], bool]


def ranked_pairs(
    k: Mapping[Side, float], v: Mapping[Side, float], fits: Fits
) -> list[tuple[Side, Side]]:
    """All pairs that fit, least predicted change first."""
    pairs = [(a, b) for a in k for b in v if fits(a, b)]
    return sorted(pairs, key=lambda pair: k[pair[0]] + v[pair[1]])  # ties: the order of the sides
