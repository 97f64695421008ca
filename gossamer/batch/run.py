"""A batch job from its files to its last result; where it is computed is for others to say."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gossamer.batch.job import Job, Setup
from gossamer.batch.lines import Survey, survey
from gossamer.batch.results import Results
from gossamer.evaluation.progress import Bar

Compute = Callable[[Setup, Survey, Results, Bar], None]


@dataclass(frozen=True)
class Summary:
    """lines: of the input that are not blank. answered: those with status 200."""

    lines: int
    answered: int

    def __str__(self) -> str:
        return f"{self.lines:,} lines: {self.answered:,} answered, {self.errors:,} errors"

    @property
    def errors(self) -> int:
        return self.lines - self.answered


def run(setup: Setup, source: Path, target: Path, compute: Compute) -> Summary:
    """One result in `target` for each line of `source`; goes on where an earlier run ended.

    compute: gives every line without a result one. Raises ValueError or OSError before anything is
    computed for files that cannot be read, written or continued, and what `compute` raises.
    """
    found = survey(source, setup.longest_line)
    job = Job(found.digest, setup.digest())
    with Bar(shown=True) as bar, Results(target, job, len(found.repeats) - 1) as results:
        if results.count:
            bar.say(f"{results.count:,} of {found.count:,} lines have results already")
        if results.count < found.count:
            bar.start("lines", found.count, results.count)
            compute(setup, found, results, bar)
        return Summary(found.count, results.answered)
