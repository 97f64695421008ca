"""Change in NLL of caches by the engine, kept in a results file like those of `gossamer eval`."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from gossamer.evaluation.experiment import Experiment, Result, evaluate
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.progress import Stages
from gossamer.evaluation.report import BASELINE, summarise
from gossamer.evaluation.statistics import Change
from gossamer.evaluation.store import Entry, Store
from gossamer.evaluation.tasks import Emit, Subject
from gossamer.kv import KVConfig

OpenSpec = Callable[[str], AbstractContextManager[Subject]]


class SearchError(Exception):
    """A search that has nothing to recommend."""


@dataclass(frozen=True)
class Watched(Perplexity):
    """Perplexity that tells about each window; its results are those of perplexity."""

    on_window: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    def run(self, subject: Subject, done: set[str], emit: Emit) -> None:
        def told(score: Any) -> None:
            emit(score)
            self.on_window()

        super().run(subject, done, told)


@dataclass(frozen=True)
class Conditions:
    """What results depend on other than the cache; see Experiment for model and setup.

    calibration: name of the file and its digest, for caches that have bases or ranks of it.
    """

    model: str
    setup: dict[str, Any]
    calibration: tuple[str, str] | None = None
    device: str = "cpu"

    @property
    def calibrated_setup(self) -> dict[str, Any]:
        """What is added to the setup of calibrated caches."""
        return {} if self.calibration is None else {"calibration": self.calibration[1]}


@dataclass
class Measuring:
    """Measures caches against the dense one, on the same windows of a text.

    opened: an engine with the cache that a spec names. failed: errors of those that could not run.
    """

    text: Perplexity
    conditions: Conditions
    opened: OpenSpec
    store: Store
    stages: Stages
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def windows(self) -> int:
        return self.text.tokens // self.text.context

    def baseline(self) -> float:
        """Perplexity of a dense cache. Raises SearchError when it cannot be measured."""
        result = self._run(BASELINE, self.text, {})
        value = summarise([result])[0].value
        if result.entry.error or value is None:
            raise SearchError(f"the dense cache could not be measured: {result.entry.error}")
        return value.value

    def change(self, config: KVConfig, windows: int | None = None) -> Change | None:
        """In NLL per token, on the first `windows` or all; None if it failed, see `failed`."""
        count = self.windows if windows is None else windows
        task = replace(self.text, tokens=count * self.text.context)
        spec = str(config)
        setup = self.conditions.calibrated_setup if config.calibrated else {}
        result = self._run(spec, task, setup)
        if result.entry.error or not result.entry.finished:
            self.failed[spec] = result.entry.error or "not finished"
            return None
        dense = Result(BASELINE, task.name, task.kind, self._dense_entry(result.entry))
        change = summarise([dense, result])[1].change
        return change if change is not None and math.isfinite(change.value) else None

    def _dense_entry(self, like: Entry) -> Entry:
        experiment = self._experiment(BASELINE, self.text, {})
        scores = self.store.entry(experiment.point(self.text, BASELINE)).scores
        return Entry({name: scores[name] for name in like.scores if name in scores})

    def _run(self, spec: str, task: Perplexity, setup: Mapping[str, Any]) -> Result:
        experiment = self._experiment(spec, task, setup)
        there = len(self.store.entry(experiment.point(task, spec)).scores)
        self.stages.expect(-there)
        before = self.stages.done
        result = evaluate(experiment, {spec: lambda: self.opened(spec)}, self.store)[0]
        missing = task.tokens // task.context - there - (self.stages.done - before)
        self.stages.expect(-missing)  # of one that failed
        return result

    def _experiment(self, spec: str, task: Perplexity, setup: Mapping[str, Any]) -> Experiment:
        watched = Watched(**vars(task), on_window=self.stages.advance)
        return Experiment(
            model=self.conditions.model,
            tasks=[watched],
            setup=self.conditions.setup,
            setups={spec: dict(setup)} if setup else {},
            device=self.conditions.device,
        )
