"""Which pairs and variants are worth a measurement."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from gossamer.evaluation.frontier.budget import Budget, share_at
from gossamer.evaluation.frontier.pareto import front
from gossamer.evaluation.frontier.prediction import ranked_pairs
from gossamer.kv import KVConfig, KVShape, Side
from gossamer.kv.config import DEFAULT_WINDOW
from gossamer.ops.kv_block import BLOCK_TOKENS

REACH = 1.25  # times the budget: what a little more memory would bring
OFTEN = 2  # pairs that one side may be in, so that a wrong prediction does not spoil all
WIDER = (64, 128)  # windows


@dataclass(frozen=True)
class Predicted:
    """What every side that is left will cost, in caches with this sink."""

    k: Mapping[Side, float]
    v: Mapping[Side, float]
    shape: KVShape
    budget: Budget
    sink: int = 0

    def pair(self, k: Side, v: Side) -> KVConfig:
        return KVConfig(k, v, sink=self.sink)

    def fits(self, k: Side, v: Side) -> bool:
        return self.budget.holds(self.pair(k, v), self.shape)

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
    every = (predicted.pair(k, v) for k in predicted.k for v in predicted.v)
    points = {
        pair: (share, predicted.cost(pair))
        for pair in every
        if (share := share_at(pair, shape, budget.length)) <= budget.share * REACH and share < 1
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
    pairs = (predicted.pair(k, v) for k in predicted.k for v in predicted.v)
    costs = {pair: measured.get(pair, predicted.cost(pair)) for pair in pairs}
    ranked = sorted(costs, key=lambda pair: costs[pair])
    other = 0 if predicted.sink else BLOCK_TOKENS
    found: list[KVConfig] = []
    for window, sink in ((DEFAULT_WINDOW, other), *((w, predicted.sink) for w in WIDER)):
        varied = (replace(pair, window=window, sink=sink) for pair in ranked)
        fitting = (pair for pair in varied if predicted.budget.holds(pair, predicted.shape))
        found += list(islice(fitting, 1))
    return found
