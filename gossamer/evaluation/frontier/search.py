"""The search: screen every side, probe some with the engine, measure pairs of the best.

All pairs of sides would be tens of thousands of measurements of a minute each. Sides alone are a
few hundred, most of which a look at attention outputs rules out; and what pairs cost is predicted
from what their sides do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gossamer.evaluation.frontier.candidates import Candidates, uniform
from gossamer.evaluation.frontier.measuring import Measuring
from gossamer.evaluation.frontier.outcome import Outcome, Role, Row, SearchError
from gossamer.evaluation.frontier.pareto import near_front
from gossamer.evaluation.frontier.probing import Probing
from gossamer.evaluation.frontier.problem import Effort, Problem
from gossamer.evaluation.frontier.screening import Errors
from gossamer.evaluation.frontier.selection import WIDER, Predicted, choose_pairs, variants
from gossamer.kv import KVConfig, Side

FACTOR = 1.25**2  # errors are squares: sides within a quarter of the best of their size go on
VARIANTS = 1 + len(WIDER)
SCREENING_WINDOWS = 6.0  # that screening takes as long as, for a bar
ScreenSides = Callable[[Candidates], dict[int, Errors]]  # by sink


@dataclass
class Search:
    """One search. measuring, screening: by the engine, or by fakes in tests."""

    problem: Problem
    effort: Effort
    measuring: Measuring
    screening: ScreenSides
    notes: list[str] = field(default_factory=list)
    _rows: dict[KVConfig, Row] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Raises ValueError for a budget that nothing fits, SearchError if the engine fails."""
        candidates = self.problem.candidates()
        baselines = uniform(self.problem.shape, self.problem.budget, self.problem.half)
        if not baselines:
            self.notes.append(f"no uniform magnitude pruning fits {self.problem.budget.words}")
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
        shape, length = self.problem.shape, self.problem.budget.length
        dense = Row.of(KVConfig(), "dense", None, shape, length)
        rows = [dense, *self._rows.values()]
        for spec, error in self.measuring.failed.items():
            self._note(f"{spec} failed: {error}")
        return Outcome.of(self.problem.budget, rows, perplexity, self.notes)

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
            shape, budget = self.problem.shape, self.problem.budget
            predicted = Predicted(kept.k, kept.v, shape, budget, sink)
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
        head_dim = self.problem.shape.head_dim
        points = {side: (float(side.block_bytes(head_dim)), e) for side, e in errors.items()}
        return {side: errors[side] for side in near_front(points, FACTOR)}

    # ---- measuring ------------------------------------------------------------------------

    def _measure(self, configs: Sequence[KVConfig], role: Role, *, first: bool = False) -> None:
        """first: whatever the clock says, so that there is something to recommend."""
        stages, problem = self.measuring.stages, self.problem
        for done, config in enumerate(configs):
            if not first and not stages.time_for(self.measuring.windows, self.effort.minutes):
                skipped = ", ".join(str(c) for c in configs[done:])
                self._note(f"not measured, as the minutes were over: {skipped}")
                stages.expect(-(len(configs) - done) * self.measuring.windows)
                return
            stages.start(f"measuring {config}")
            change = self.measuring.change(config)
            if change is not None:
                length = problem.budget.length
                self._rows[config] = Row.of(config, role, change, problem.shape, length)
                stages.say(f"{config}: {change.value:+.4f} ± {change.half:.4f}")

    def _vary(self, predicted: Predicted) -> None:
        """Other windows and sinks."""
        pairs = {c: r.added for c, r in self._rows.items() if r.role == "pair"}
        found = variants(predicted, pairs)
        self.measuring.stages.expect((len(found) - VARIANTS) * self.measuring.windows)
        self._measure(found, "variant")

    def _note(self, words: str) -> None:
        self.notes.append(words)
        self.measuring.stages.say(f"note: {words}")
