"""What caches will cost in NLL, by errors of all sides and probes of some; what is worth measuring.

Over the sides of K, or of V, the change in NLL follows the screening's error by a power law, up to
a factor that kinds of sides have in common (a rank by gradients is better than its error says).
A probe is noisy, so what it says and what the law says are weighed by how sure they are. K and V
are compressed independently: their costs add up.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean

from gossamer.evaluation.frontier.candidates import REACH, Budget, Fits
from gossamer.evaluation.pareto import front
from gossamer.evaluation.statistics import Change
from gossamer.kv import KVConfig, KVShape, Side
from gossamer.kv.config import DEFAULT_WINDOW
from gossamer.ops.kv_block import BLOCK_TOKENS

LAW_SPREAD = 0.3  # relative; how far sides of one kind lie from the law
LEAST = 1e-9  # of errors and changes whose logarithms are taken
SLOPES = (0.5, 1.5)
OFTEN = 2  # pairs that one side may be in, so that a wrong prediction does not spoil all
WIDER = (64, 128)  # windows


def kind_of(side: Side) -> Hashable:
    """Sides whose errors can be compared with each other."""
    return type(side.layout), side.basis, side.policy


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


def ranked_pairs(
    k: Mapping[Side, float], v: Mapping[Side, float], fits: Fits
) -> list[tuple[Side, Side]]:
    """All pairs that fit, least predicted change first."""
    pairs = [(a, b) for a in k for b in v if fits(a, b)]
    return sorted(pairs, key=lambda pair: k[pair[0]] + v[pair[1]])  # ties: the order of the sides


# ---- pairs and variants that are worth a measurement ---------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """What every side that is left will cost, in caches with this sink.

    allows: the pairs that may be measured.
    """

    k: Mapping[Side, float]
    v: Mapping[Side, float]
    shape: KVShape
    budget: Budget
    sink: int = 0
    allows: Fits = lambda k, v: True

    def pair(self, k: Side, v: Side) -> KVConfig:
        return KVConfig(k, v, sink=self.sink)

    def pairs(self) -> Iterator[KVConfig]:
        """Of any size."""
        return (self.pair(k, v) for k in self.k for v in self.v if self.allows(k, v))

    def fits(self, k: Side, v: Side) -> bool:
        return self.allows(k, v) and self.budget.holds(self.pair(k, v), self.shape)

    def cost(self, config: KVConfig) -> float:
        return self.k[config.k] + self.v[config.v]

    def best(self) -> Iterator[KVConfig]:
        """Pairs within the budget, least predicted cost first."""
        for k, v in ranked_pairs(self.k, self.v, self.fits):
            yield self.pair(k, v)

    def promising(self, factor: float) -> tuple[dict[Side, float], dict[Side, float]]:
        """Sides that are in a pair within the budget at `factor` times the least predicted cost."""
        pairs = list(self.best())
        good = [pair for pair in pairs if self.cost(pair) <= factor * self.cost(pairs[0])]
        k, v = {pair.k for pair in good}, {pair.v for pair in good}
        return (
            {side: cost for side, cost in self.k.items() if side in k},
            {side: cost for side, cost in self.v.items() if side in v},
        )


def choose_pairs(predicted: Predicted, count: int) -> list[KVConfig]:
    """`count` pairs, the most promising first: half within the budget, the others around it.

    Around it: the predicted frontier, one above the budget, the others spread below it.
    """
    around = count // 2
    chosen: list[KVConfig] = []
    used: Counter[tuple[str, Side]] = Counter()
    for pair in predicted.best():
        sides = (("k", pair.k), ("v", pair.v))
        if len(chosen) < count - around and all(used[side] < OFTEN for side in sides):
            chosen.append(pair)
            used.update(sides)
    return chosen + _around(predicted, around, chosen)


def _around(predicted: Predicted, count: int, chosen: Sequence[KVConfig]) -> list[KVConfig]:
    shape, budget = predicted.shape, predicted.budget
    points = {
        pair: (share, predicted.cost(pair))
        for pair in predicted.pairs()
        if (share := pair.share_at(shape, budget.length)) <= budget.share * REACH and share < 1
    }
    line = [pair for pair in front(points) if pair not in chosen]
    below = [pair for pair in line if points[pair][0] <= budget.share]
    above = [pair for pair in line if points[pair][0] > budget.share]
    low = min((points[pair][0] for pair in below), default=budget.share)
    found: list[KVConfig] = above[-1:] if count else []
    steps = count - len(found)
    for step in range(steps):
        # Towards the smallest cache, but not the useless ones at its end.
        target = budget.share + (low - budget.share) * (step + 1) / (steps + 1)
        left = [pair for pair in below if pair not in found]
        if left:
            found.append(min(left, key=lambda pair: abs(points[pair][0] - target)))
    return found


def variants(predicted: Predicted, measured: Mapping[KVConfig, float]) -> list[KVConfig]:
    """With or without a sink, and with wider windows: each of the best pair that then fits.

    measured: what pairs turned out to cost, which counts more than what was predicted.
    """
    costs = {pair: measured.get(pair, predicted.cost(pair)) for pair in predicted.pairs()}
    ranked = sorted(costs, key=lambda pair: costs[pair])
    other = 0 if predicted.sink else BLOCK_TOKENS
    found: list[KVConfig] = []
    for window, sink in ((DEFAULT_WINDOW, other), *((w, predicted.sink) for w in WIDER)):
        varied = (replace(pair, window=window, sink=sink) for pair in ranked)
        fitting = (pair for pair in varied if predicted.budget.holds(pair, predicted.shape))
        found += list(islice(fitting, 1))
    return found
