"""Tables of whole models under masks: every point, and geometric means by shape."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.end_to_end.fusion import DENSE, FLEX, OP, OURS
from benchmarks.records import read_lines
from benchmarks.reports.markdown import NOTHING, ms, speed_up, table
from gossamer.bench import Record
from gossamer.bench.suite import RESULTS

Key = tuple[str, str, tuple[int, ...]]  # model, mask and shape
Ways = dict[str, Record]
COMPILED = [name for name in DENSE if name != "eager"]
BOTH = ("gossamer", "tuned")
FAILURES = f"*/failures/{OP}.jsonl"


def _points(records: Iterable[Record]) -> dict[Key, Ways]:
    """Records by point, largest shapes first."""
    found: dict[Key, Ways] = defaultdict(dict)
    for record in records:
        if record.op == OP:
            about = dict(part.split("=") for part in record.variant.split())
            found[about["model"], about["mask"], tuple(record.shape)][record.backend] = record
    return dict(sorted(found.items(), key=lambda item: (-math.prod(item[0][2]), item[0])))


def _best(ways: Ways, names: Iterable[str]) -> Record | None:
    found = [ways[name] for name in names if name in ways]
    return min(found, key=lambda record: record.median_ms, default=None)


def _mean(points: list[Ways], ours: Iterable[str], others: Iterable[str]) -> str:
    """Geometric mean of how much faster ours is, at the points that have both."""
    logs = []
    for ways in points:
        mine, other = _best(ways, ours), _best(ways, others)
        if mine is not None and other is not None:
            logs.append(math.log(other.median_ms / mine.median_ms))
    return f"{math.exp(sum(logs) / len(logs)):.2f}x ({len(logs)})" if logs else NOTHING


def means(records: list[Record]) -> str:
    """By shape: both parts over the peers' best, each part alone, and the tuner's share."""
    by_shape: dict[tuple[int, ...], list[Ways]] = defaultdict(list)
    for (_, _, shape), ways in _points(records).items():
        by_shape[shape].append(ways)
    columns: dict[str, Callable[[list[Ways]], str]] = {
        "over eager": lambda points: _mean(points, BOTH, ["eager"]),
        "over torch.compile": lambda points: _mean(points, BOTH, COMPILED),
        "over FlexAttention": lambda points: _mean(points, BOTH, FLEX),
        "attention alone": lambda points: _mean(points, ["attention"], COMPILED),
        "fusion alone": lambda points: _mean(points, ["fusion"], COMPILED),
        "tuned over untuned": lambda points: _mean(points, ["tuned"], ["gossamer"]),
    }
    rows = [
        [f"{shape[0]} x {shape[1]:,}", *(make(points) for make in columns.values())]
        for shape, points in by_shape.items()
    ]
    return table(["shape", *columns], rows) if rows else "Not measured yet."


def points(records: list[Record]) -> str:
    """Milliseconds of every way; the fastest mode of torch.compile, and of FlexAttention."""
    rows = []
    for (model, mask, shape), ways in _points(records).items():
        dense, flex = _best(ways, COMPILED), _best(ways, FLEX)
        ours = _best(ways, BOTH)
        names = [model, f"{shape[0]} x {shape[1]:,}", mask, ms(ways.get("eager"))]
        times = [ms(dense), ms(flex), *(ms(ways.get(name)) for name in OURS)]
        rows.append([*names, *times, speed_up(ours, dense), speed_up(ours, flex)])
    columns = ["model", "shape", "mask", "eager", "torch.compile", "FlexAttention", *OURS]
    made = table([*columns, "over torch.compile", "over FlexAttention"], rows)
    return made if rows else "Not measured yet."


def failed(results: Path = RESULTS) -> str:
    """Ways that failed the last time, with the error."""
    lines = [line for path in sorted(results.glob(FAILURES)) for line in read_lines(path)]
    rows = [
        [
            line["variant"],
            " x ".join(f"{n:,}" for n in line["shape"]),
            line["backend"],
            line["error"].replace("|", "/"),
            f"{line['device']}, `{line['revision']}`",
        ]
        for line in lines
    ]
    made = table(["point", "shape", "way", "error", "where"], rows)
    return f"Ways that failed:\n\n{made}" if rows else "No way is recorded as failed."
