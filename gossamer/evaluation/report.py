"""What results come to: a value for each subject and task, its change against dense, and tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from gossamer.evaluation.experiment import Result
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
from gossamer.kv.speed import DecodeSpeed

Speeds = Mapping[str, DecodeSpeed]  # by subject
BASELINE = "dense"
NOTHING = "-"
NOTE = (
    "Intervals are for 95%: perplexity by Student's t over pieces of text, accuracy by Wilson. "
    f"Changes are against {BASELINE}, paired over the same pieces (in NLL per token) and the same "
    "examples (in points; p by McNemar's exact test)."
)


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


# ---- tables, for terminals and for Markdown pages ------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One subject: what it stores, how it decodes, and (value, change) for each task."""

    subject: str
    bytes_per_token: str
    share: str
    speed: str
    cells: list[tuple[str, str]]


def rows_of(
    results: Sequence[Result], baseline: str = BASELINE, speeds: Speeds | None = None
) -> list[Row]:
    """A row for each subject, in their order."""
    found: dict[str, list[Summary]] = {}
    for summary in summarise(results, baseline):
        found.setdefault(summary.result.subject, []).append(summary)
    return [
        _row(subject, summaries, (speeds or {}).get(subject))
        for subject, summaries in found.items()
    ]


def rich_table(
    results: Sequence[Result], baseline: str = BASELINE, speeds: Speeds | None = None
) -> Table:
    """A change is below its value."""
    table = Table("cache", show_lines=True)
    for name in (*_columns(speeds), *tasks_of(results)):
        table.add_column(escape(name), justify="right")
    for row in rows_of(results, baseline, speeds):
        cells = ["\n".join(part for part in cell if part) for cell in row.cells]
        table.add_row(*map(escape, (row.subject, *_facts(row, speeds), *cells)))
    return table


def markdown(
    results: Sequence[Result], baseline: str = BASELINE, speeds: Speeds | None = None
) -> str:
    """A column for values and one for changes of each task."""
    columns = ["cache", *_columns(speeds)]
    columns += [name for task in tasks_of(results) for name in (task, f"change in {task}")]
    lines = [columns, ["---"] * len(columns)]
    for row in rows_of(results, baseline, speeds):
        cells = [part or NOTHING for cell in row.cells for part in cell]
        lines.append([f"`{row.subject}`", *_facts(row, speeds), *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + f"\n\n{NOTE}\n"


def tasks_of(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.task for result in results))


def _columns(speeds: Speeds | None) -> tuple[str, ...]:
    return ("bytes per token", "share", *(() if speeds is None else ("decode against dense",)))


def _facts(row: Row, speeds: Speeds | None) -> tuple[str, ...]:
    return (row.bytes_per_token, row.share, *(() if speeds is None else (row.speed,)))


def _row(subject: str, summaries: Sequence[Summary], speed: DecodeSpeed | None) -> Row:
    stored = next((s.result.entry for s in summaries if s.result.entry.share), None)
    sizes = (NOTHING, NOTHING)
    if stored is not None:
        sizes = (f"{stored.bytes_per_token:,.0f}", f"{stored.share:.1%}")
    time = NOTHING if speed is None else speed.short
    return Row(subject, *sizes, time, [_cell(summary) for summary in summaries])


def _cell(summary: Summary) -> tuple[str, str]:
    if summary.value is None:
        return ("failed" if summary.error else NOTHING), ""
    accuracy = summary.result.kind == "accuracy"
    value = _accuracy(summary.value) if accuracy else _perplexity(summary.value)
    if not summary.result.entry.finished:
        value += f", only {summary.examples} scored"
    if summary.change is None:
        return value, ""
    return value, _points(summary.change) if accuracy else _nll(summary.change)


def _accuracy(found: Interval) -> str:
    """Wilson's interval is not symmetric: its ends instead of a plus-minus."""
    return f"{found.value:.1%} ({100 * found.low:.0f} to {100 * found.high:.0f})"


def _perplexity(found: Interval) -> str:
    if math.isinf(found.high):
        return f"{found.value:.3f}"
    return f"{found.value:.3f} ± {found.half:.3f}"


def _points(change: Change) -> str:
    half = "" if math.isinf(change.half) else f" ± {100 * change.half:.1f}"
    return f"{100 * change.value:+.1f}{half}, p {change.p:.2g}"


def _nll(change: Change) -> str:
    half = "" if math.isinf(change.half) else f" ± {change.half:.4f}"
    return f"{change.value:+.4f}{half}"
