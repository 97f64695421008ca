"""Short runs of the engine with one side compressed, and what they predict of all others."""

import math
from dataclasses import dataclass

from gossamer.evaluation.frontier.candidates import side_words
from gossamer.evaluation.frontier.measuring import Measuring
from gossamer.evaluation.frontier.pareto import spread
from gossamer.evaluation.frontier.prediction import kind_of, predict
from gossamer.evaluation.frontier.problem import Effort, Problem
from gossamer.evaluation.frontier.screening import Errors
from gossamer.evaluation.frontier.selection import Predicted
from gossamer.evaluation.statistics import Change
from gossamer.kv import Dense, KVConfig, Side

PLAUSIBLE = 4.0  # times the best pair's predicted cost: sides of worse pairs need no probe
PART = 0.5  # of the minutes; the rest is for measurements
FIRST = 5 / 8  # of the probes go to sides of all sizes and kinds


@dataclass(frozen=True)
class Probing:
    """Probes of one search, with this sink."""

    problem: Problem
    effort: Effort
    measuring: Measuring
    sink: int = 0

    @property
    def windows(self) -> int:
        wanted = self.effort.probe_tokens // self.measuring.text.context
        return min(max(1, wanted), self.measuring.windows)

    def run(self, errors: Errors) -> Predicted:
        """First sides of all sizes and kinds, then those of the pairs that look best.

        A side that the engine fails with is left out.
        """
        errors = Errors(dict(errors.k), dict(errors.v))
        probes: dict[str, dict[Side, Change]] = {"k": {}, "v": {}}
        tried: set[tuple[str, Side]] = set()
        k, v = self._predicted(errors, probes).promising(PLAUSIBLE)
        first = [("k", s) for s in self._spread(k)] + [("v", s) for s in self._spread(v)]
        left = 2 * self.effort.probes
        while left > 0:
            step = first.pop(0) if first else self._next(errors, probes, tried)
            if step is None or not self._time():
                break
            left -= 1
            tried.add(step)
            name, side = step
            change = self._probe_one(name, side)
            if change is None:
                (errors.k if name == "k" else errors.v).pop(side)
            else:
                probes[name][side] = change
        self.measuring.stages.expect(-left * self.windows)
        return self._predicted(errors, probes)

    def _spread(self, errors: dict[Side, float]) -> list[Side]:
        sides, head_dim = list(errors), self.problem.shape.head_dim
        sizes = {side: float(side.block_bytes(head_dim)) for side in sides}
        kinds = {side: kind_of(side) for side in sides}
        count = math.ceil(self.effort.probes * FIRST)
        return spread(sides, sizes, errors, kinds, count)

    def _next(
        self, errors: Errors, probes: dict[str, dict[Side, Change]], tried: set[tuple[str, Side]]
    ) -> tuple[str, Side] | None:
        """The first side of the best pairs that no probe has seen; None if all were seen."""
        for pair in self._predicted(errors, probes).best():
            for step in (("k", pair.k), ("v", pair.v)):
                if step not in tried:
                    return step
        return None

    def _probe_one(self, name: str, side: Side) -> Change | None:
        other = Side(Dense(self.problem.half))
        k, v = (side, other) if name == "k" else (other, side)
        config = KVConfig(k, v, sink=self.sink)
        stages = self.measuring.stages
        stages.start(f"probing {name}={side_words(side)}")
        change = self.measuring.change(config, self.windows)
        words = "failed" if change is None else f"{change.value:+.4f} ± {change.half:.4f}"
        stages.say(f"probe {name}={side_words(side)}: {words}")
        return change

    def _predicted(self, errors: Errors, probes: dict[str, dict[Side, Change]]) -> Predicted:
        k, v = predict(errors.k, probes["k"]), predict(errors.v, probes["v"])
        return Predicted(k, v, self.problem.shape, self.problem.budget, self.sink)

    def _time(self) -> bool:
        minutes = self.effort.minutes
        part = None if minutes is None else minutes * PART
        return self.measuring.stages.time_for(self.windows, part)
