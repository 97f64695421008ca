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
from gossamer.evaluation.bar import Bar
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
class Plan:
    """Which tasks of which model.

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
    plan: Plan, subjects: Mapping[str, Open], store: Store, *, progress: bool = False
) -> list[Result]:
    """Run what is missing; every result, old and new. subjects: how each is opened, by name."""
    with Bar(shown=progress) as bar:
        for name, opened in subjects.items():
            missing = [t for t in plan.tasks if not store.entry(plan.point(t, name)).finished]
            for task in plan.tasks:
                if task not in missing:
                    bar.say(f"{task.name}, {name}: in the results already")
            if missing:
                _examine(plan, name, opened, missing, store, bar)
    return plan.results(list(subjects), store)


def _examine(
    plan: Plan, name: str, opened: Open, tasks: Sequence[Task], store: Store, bar: Bar
) -> None:
    bar.say(f"loading {name}")
    waiting = list(tasks)
    try:
        with opened() as subject:
            while waiting:
                _run(plan, waiting.pop(0), name, subject, store, bar)
    except Exception as error:  # of opening and closing; a task keeps its own
        for task in waiting:
            _fail(plan, task, name, error, 0.0, store, bar)


def _run(plan: Plan, task: Task, name: str, subject: Subject, store: Store, bar: Bar) -> None:
    point, facts = plan.point(task, name), _facts(plan)
    facts |= {"bytes_per_token": subject.bytes_per_token, "share": subject.share}
    done, start = set(store.entry(point).scores), time.perf_counter()

    def emit(score: Score) -> None:
        store.add_score(point, score, **facts)
        bar.advance()

    bar.start(f"{task.name}, {name}", getattr(task, "count", None), len(done))
    try:
        task.run(subject, done, emit)
    except Exception as error:
        _fail(plan, task, name, error, time.perf_counter() - start, store, bar)
        return
    seconds = time.perf_counter() - start
    store.add_end(point, seconds=round(seconds, 2), **facts)
    bar.say(f"{task.name}, {name}: {seconds:.1f} s")


def _fail(
    plan: Plan, task: Task, name: str, error: Exception, seconds: float, store: Store, bar: Bar
) -> None:
    words = f"{type(error).__name__}: {' '.join(str(error).split())}"
    facts = {**_facts(plan), "seconds": round(seconds, 2)}
    store.add_end(plan.point(task, name), error=words, **facts)
    bar.say(f"{task.name}, {name}: failed: {words}")


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "device": describe_device(plan.device),
        "versions": versions(),
        "revision": revision(),
    }
