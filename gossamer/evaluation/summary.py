"""What results come to: a value for each subject and task, and its change against the dense row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.evaluation.run import Result
from gossamer.evaluation.statistics import (
    Change,
    Interval,
    paired_change,
    paired_pieces,
    pieces,
    shared,
    weighted_mean,
    wilson,
)

BASELINE = "dense"


@dataclass(frozen=True)
class Summary:
    """value: perplexity, or accuracy from 0 to 1; None without a score. change: in NLL per token,
    or in accuracy; None for the baseline and without one. error: why the task failed, if it did."""

    result: Result
    value: Interval | None = None
    change: Change | None = None

    @property
    def error(self) -> str | None:
        return self.result.entry.error

    @property
    def examples(self) -> int:
        return len(self.result.entry.scores)


def summarise(results: Sequence[Result], baseline: str = BASELINE) -> list[Summary]:
    """In the order of the results."""
    base = {r.task: r for r in results if r.subject == baseline}
    return [Summary(r, _value(r), _change(base.get(r.task), r)) for r in results]


def _value(result: Result) -> Interval | None:
    scores = list(result.entry.scores.values())
    if not scores:
        return None
    if result.kind == "accuracy":
        return wilson([score.value for score in scores])
    nll = weighted_mean(*pieces(scores))
    low, high = (_exp(bound) for bound in (nll.low, nll.high))
    return Interval(_exp(nll.value), low, high, nll.n)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _change(base: Result | None, result: Result) -> Change | None:
    if base is None or base is result:
        return None
    ours, theirs = shared(base.entry.scores, result.entry.scores)
    if not ours:
        return None
    if result.kind == "accuracy":
        return paired_change([s.value for s in ours], [s.value for s in theirs])
    before, after, tokens = paired_pieces(ours, theirs)
    return paired_change(before, after, tokens)
