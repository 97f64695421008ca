"""Draws figures from records: what `gossamer figures` and `make report` call."""

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures.catalog import FIGURES, Figure
from benchmarks.figures.chart import Chart, Picture, as_csv
from benchmarks.figures.render import figure_of
from benchmarks.records import Benchmarks, MissingRecordsError
from gossamer import plotting

COMMITTED = Path(__file__).parents[2] / "docs/figures"
FORMATS = ("svg", "png", "pdf")


@dataclass(frozen=True)
class Outcome:
    """Of one figure. problem: why there is none; missing: because nothing was measured."""

    name: str
    values: int = 0
    seconds: float = 0.0
    problem: str = ""
    missing: bool = False


def named(names: Sequence[str]) -> list[Figure]:
    """The figures of these names, by default all. ValueError for others."""
    known = {figure.name: figure for figure in FIGURES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no figure {unknown[0]!r}; must be one of {', '.join(known)}")
    return [known[name] for name in names or known]


def draw(
    found: Benchmarks,
    folder: Path,
    figures: Iterable[Figure] = FIGURES,
    kind: str = "svg",
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Write NAME.svg and its values as NAME.csv for each; a figure that fails keeps no other back.

    Raises ImportError without matplotlib, ValueError for a kind of file that there is not.
    """
    plotting.check()
    if kind not in FORMATS:
        raise ValueError(f"format is {kind!r}; must be {', '.join(FORMATS)}")
    outcomes = []
    for figure in figures:
        outcomes.append(_one(figure, found, folder, kind))
        on_outcome(outcomes[-1])
    return outcomes


def _one(figure: Figure, found: Benchmarks, folder: Path, kind: str) -> Outcome:
    start = time.perf_counter()
    try:
        chart = figure.make(found)
    except MissingRecordsError as error:
        return Outcome(figure.name, problem=str(error), missing=True)
    except (ValueError, KeyError, TypeError) as error:  # records that say something else
        return Outcome(figure.name, problem=f"{type(error).__name__}: {error}")
    values = as_csv(chart.rows())
    write(chart, folder / f"{figure.name}.{kind}", values)
    (folder / f"{figure.name}.csv").write_text(values)
    return Outcome(figure.name, len(chart.rows()), time.perf_counter() - start)


def write(chart: Chart | Picture, path: Path, values: str) -> None:
    """The picture; an SVG names the digest of the values that it shows."""
    with plotting.style():
        plotting.save(figure_of(chart), path, Description=digest(values))


def digest(values: str) -> str:
    return f"values {hashlib.sha256(values.encode()).hexdigest()[:16]}"
