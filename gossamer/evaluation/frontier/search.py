"""The search: screen every side, probe some with the engine, measure pairs of the best.

All pairs of sides would be tens of thousands of measurements of a minute each. Sides alone are a
few hundred, most of which a look at attention outputs rules out; and what pairs cost is predicted
from what their sides do.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gossamer.evaluation.frontier.candidates import Candidates, Problem, side_spec, uniform
from gossamer.evaluation.frontier.measure import Measuring, SearchError
from gossamer.evaluation.frontier.outcome import Aim, MeasuredCache, Outcome, Role
from gossamer.evaluation.frontier.prediction import (
    WIDER,
    Predicted,
    choose_pairs,
    kind_of,
    predict,
    variants,
)
from gossamer.evaluation.frontier.screening import Errors
from gossamer.evaluation.pareto import near_front, spread
from gossamer.evaluation.statistics import Change
from gossamer.evaluation.tasks import at_least
from gossamer.kv import Dense, KVConfig, Side
from gossamer.kv.layouts import Coded
from gossamer.kv.speed import DecodeSpeed

SCREENING_FACTOR = 1.25**2  # errors are squares: sides within a quarter of the best go on
VARIANTS = 1 + len(WIDER)
SCREENING_WINDOWS = 6.0  # that screening takes as long as, for a bar
PLAUSIBLE = 4.0  # times the best pair's predicted cost: sides of worse pairs need no probe
PROBING_TIME = 0.5  # share of the minutes; the rest is for measurements
SPREAD_PROBES = 5 / 8  # share of the probes that go to sides of all sizes and kinds
ScreenSides = Callable[[Candidates], dict[int, Errors]]  # by sink


@dataclass(frozen=True)
class Effort:
    """probes: engine runs for each side. pairs: to measure. minutes: no new runs after them.

    probe_tokens: of the text that probes see; the first windows. Raises ValueError.
    """

    probes: int = 8
    pairs: int = 6
    probe_tokens: int = 4096
    minutes: float | None = None

    def __post_init__(self) -> None:
        at_least(self, probes=0, pairs=1, probe_tokens=1)
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes is {self.minutes}; must be above 0")


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
        count = math.ceil(self.effort.probes * SPREAD_PROBES)
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
        stages.start(f"probing {name}={side_spec(side)}")
        change = self.measuring.change(config, self.windows)
        result = "failed" if change is None else f"{change.value:+.4f} ± {change.half:.4f}"
        stages.say(f"probe {name}={side_spec(side)}: {result}")
        return change

    def _predicted(self, errors: Errors, probes: dict[str, dict[Side, Change]]) -> Predicted:
        k, v = predict(errors.k, probes["k"]), predict(errors.v, probes["v"])
        problem = self.problem
        return Predicted(k, v, problem.shape, problem.budget, self.sink, problem.allows)

    def _time(self) -> bool:
        minutes = self.effort.minutes
        part = None if minutes is None else minutes * PROBING_TIME
        return self.measuring.stages.time_for(self.windows, part)


@dataclass
class Search:
    """One search. measuring, screening: by the engine, or by fakes in tests.

    speed: how caches decode; None for no such column.
    """

    problem: Problem
    effort: Effort
    measuring: Measuring
    screening: ScreenSides
    notes: list[str] = field(default_factory=list)
    speed: Callable[[KVConfig], DecodeSpeed] | None = None
    aim: Aim = field(default_factory=Aim)
    _rows: dict[KVConfig, MeasuredCache] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Raises ValueError for a budget that nothing fits, SearchError if the engine fails."""
        candidates = self.problem.candidates()
        baselines = uniform(self.problem.shape, self.problem.budget, self.problem.half)
        if not baselines:
            self.notes.append(f"no uniform magnitude pruning fits {self.problem.budget.text}")
        if not self.problem.has_kernels:
            self.notes.append(
                f"no GPU kernel is tuned for a head_dim of {self.problem.shape.head_dim}"
            )
        stages, windows = self.measuring.stages, self.measuring.windows
        probing = Probing(self.problem, self.effort, self.measuring)
        measured = 1 + self.effort.pairs + len(baselines) + VARIANTS
        stages.expect(2 * self.effort.probes * probing.windows + measured * windows)
        stages.expect(SCREENING_WINDOWS)
        for note in self.notes:  # while there is time to think again
            stages.say(f"note: {note}")
        stages.start("dense")
        perplexity = self.measuring.baseline()
        stages.say(f"dense: perplexity {perplexity:.3f}")
        sink, errors = self._screen(candidates)
        predicted = replace(probing, sink=sink).run(errors)
        pairs = choose_pairs(predicted, self.effort.pairs)
        stages.expect((len(pairs) - self.effort.pairs) * windows)
        self._measure(pairs[:1], "pair", first=True)
        self._measure(baselines, "uniform")
        self._measure(pairs[1:], "pair")
        self._vary(predicted)
        rows = [self._row(KVConfig(), "dense", None), *self._rows.values()]
        for spec, error in self.measuring.failed.items():
            self._note(f"{spec} failed: {error}")
        return Outcome.of(self.problem.budget, rows, perplexity, self.notes, self.aim)

    # ---- screening ------------------------------------------------------------------------

    def _screen(self, candidates: Candidates) -> tuple[int, Errors]:
        """The sink whose best pair has the least error, and errors of the sides that are left."""
        stages = self.measuring.stages
        stages.start(f"screening {len(candidates)} layouts of K and V")
        before = stages.done
        errors = self.screening(candidates)
        stages.expect(stages.done - before - SCREENING_WINDOWS)  # if a results file had them
        least: dict[int, float] = {}
        for sink, found in errors.items():
            errors[sink] = kept = Errors(self._near(found.k), self._near(found.v))
            predicted = Predicted(
                kept.k, kept.v, self.problem.shape, self.problem.budget, sink, self.problem.allows
            )
            if (best := next(predicted.best(), None)) is not None:
                least[sink] = predicted.cost(best)
        if not least:
            raise SearchError("attention of the model is not finite on this text")
        sink = min(least, key=lambda sink: least[sink])
        left = f"{len(errors[sink].k)} of {len(candidates.k)} layouts for K and "
        left += f"{len(errors[sink].v)} of {len(candidates.v)} for V"
        stages.say(f"screening: {left} go on, with a sink of {sink} tokens")
        return sink, errors[sink]

    def _near(self, errors: dict[Side, float]) -> dict[Side, float]:
        """Those worth a probe; coded ones all are, if they are finite.

        A coded side has but one or two to go with, which may be better than it is itself; and the
        others cannot go with it, so that it says nothing against them.
        """
        head_dim = self.problem.shape.head_dim
        coded = {s for s, e in errors.items() if isinstance(s.layout, Coded) and math.isfinite(e)}
        points = {
            side: (float(side.block_bytes(head_dim)), error)
            for side, error in errors.items()
            if not isinstance(side.layout, Coded)
        }
        kept = coded.union(near_front(points, SCREENING_FACTOR))
        return {side: error for side, error in errors.items() if side in kept}

    # ---- measuring ------------------------------------------------------------------------

    def _measure(self, configs: Sequence[KVConfig], role: Role, *, first: bool = False) -> None:
        """first: whatever the clock says, so that there is something to recommend."""
        stages = self.measuring.stages
        for done, config in enumerate(configs):
            if not first and not stages.time_for(self.measuring.windows, self.effort.minutes):
                skipped = ", ".join(str(c) for c in configs[done:])
                self._note(f"not measured, as the minutes were over: {skipped}")
                stages.expect(-(len(configs) - done) * self.measuring.windows)
                return
            stages.start(f"measuring {config}")
            change = self.measuring.change(config)
            if change is not None:
                self._rows[config] = self._row(config, role, change)
                stages.say(f"{config}: {change.value:+.4f} ± {change.half:.4f}")

    def _row(self, config: KVConfig, role: Role, change: Change | None) -> MeasuredCache:
        speed = None if self.speed is None else self.speed(config)
        shape, length = self.problem.shape, self.problem.budget.length
        return MeasuredCache.of(config, role, change, shape, length, speed)

    def _vary(self, predicted: Predicted) -> None:
        """Other windows and sinks."""
        pairs = {c: r.added for c, r in self._rows.items() if r.role == "pair"}
        found = variants(predicted, pairs)
        self.measuring.stages.expect((len(found) - VARIANTS) * self.measuring.windows)
        self._measure(found, "variant")

    def _note(self, note: str) -> None:
        self.notes.append(note)
        self.measuring.stages.say(f"note: {note}")
