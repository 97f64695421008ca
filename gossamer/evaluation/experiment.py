"""Put tasks to subjects, one after the other, and keep every score as it comes.

What the results file has already is not computed again, and a subject with nothing left to do is
not even loaded. A task that fails is recorded as failed, and the others go on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from gossamer.bench.record import describe_device, revision, versions
from gossamer.evaluation.agreement import Agreement
from gossamer.evaluation.progress import Bar
from gossamer.evaluation.store import Entry, Point, Store
from gossamer.evaluation.tasks import Score, Subject, Task

Open = Callable[[], AbstractContextManager[Subject]]


@dataclass(frozen=True)
class Result:
    """What one subject has shown in one task, so far."""

    subject: str
    task: str
    kind: str
    entry: Entry


@dataclass(frozen=True)
class Experiment:
    """Which tasks to put to subjects on which model.

    setup: what else results depend on: device type, dtype, ...; setups: of some subjects alone.
    """

    model: str
    tasks: Sequence[Task]
    seed: int = 0
    setup: dict[str, Any] = field(default_factory=dict)
    setups: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    device: str = "cpu"

    def __post_init__(self) -> None:
        names = [task.name for task in self.tasks]
        if not names or len(names) != len(set(names)):
            raise ValueError(f"tasks are {names}; must be at least one, each once")

    def point(self, task: Task, subject: str) -> Point:
        setup = {**self.setup, **self.setups.get(subject, {})}
        settings = settings_of(task)
        return Point(task.name, task.kind, settings, self.model, subject, self.seed, setup)

    def results(self, subjects: Sequence[str], store: Store) -> list[Result]:
        """What a store has of them, subject by subject."""
        return [
            Result(subject, task.name, task.kind, store.entry(self.point(task, subject)))
            for subject in subjects
            for task in self.tasks
        ]


def settings_of(task: Task) -> dict[str, Any]:
    """What names the results of a task: its own settings, or its fields."""
    settings = getattr(task, "settings", None)
    if settings is not None:
        return dict(settings)
    return {f.name: getattr(task, f.name) for f in fields(task)} if is_dataclass(task) else {}


def evaluate(
    experiment: Experiment, subjects: Mapping[str, Open], store: Store, *, progress: bool = False
) -> list[Result]:
    """Run what is missing; every result, old and new. subjects: how each is opened, by name."""
    with Bar(shown=progress) as bar:
        runner = _Runner(experiment, store, bar)
        for name, opened in subjects.items():
            runner.examine(name, opened)
    return experiment.results(list(subjects), store)


@dataclass(frozen=True, eq=False)
class _Runner:
    experiment: Experiment
    store: Store
    bar: Bar

    def examine(self, name: str, opened: Open) -> None:
        """The tasks that one subject has not finished."""
        points = {task.name: self.experiment.point(task, name) for task in self.experiment.tasks}
        waiting: list[Task] = []
        for task in self.experiment.tasks:
            if self.store.entry(points[task.name]).finished:
                self.bar.say(f"{task.name}, {name}: in the results already")
            else:
                waiting.append(task)
        if not waiting:
            return
        self.bar.say(f"loading {name}")
        try:
            with opened() as subject:
                while waiting:
                    task = waiting.pop(0)
                    self._run(task, points[task.name], subject)
        except Exception as error:  # of opening and closing; a task keeps its own
            for task in waiting:
                self._fail(points[task.name], error, 0.0)

    def _run(self, task: Task, point: Point, subject: Subject) -> None:
        facts = self._facts()
        facts |= {"bytes_per_token": subject.bytes_per_token, "share": subject.share}
        done, start = set(self.store.entry(point).scores), time.perf_counter()

        def emit(score: Score) -> None:
            self.store.add_score(point, score, **facts)
            self.bar.advance()

        label = f"{point.task}, {point.subject}"
        self.bar.start(label, getattr(task, "count", None), len(done))
        try:
            self._with_baseline(task).run(subject, done, emit)
        except Exception as error:
            self._fail(point, error, time.perf_counter() - start)
            return
        seconds = time.perf_counter() - start
        self.store.add_end(point, seconds=round(seconds, 2), **facts)
        self.bar.say(f"{label}: {seconds:.1f} s")

    def _with_baseline(self, task: Task) -> Task:
        """A task that compares outputs gets the stored ones, of this run or an earlier one."""
        if not isinstance(task, Agreement):
            return task
        return task.against(self.store.entry(self.experiment.point(task, task.baseline)).scores)

    def _fail(self, point: Point, error: Exception, seconds: float) -> None:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self.store.add_end(point, error=message, **self._facts(), seconds=round(seconds, 2))
        self.bar.say(f"{point.task}, {point.subject}: failed: {message}")

    def _facts(self) -> dict[str, Any]:
        return {
            "device": describe_device(self.experiment.device),
            "versions": versions(),
            "revision": revision(),
        }
