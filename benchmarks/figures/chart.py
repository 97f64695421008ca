"""What a figure shows, as data: panels of series. How it looks is `render`'s business.

A chart is made from records alone, so a test compares it with them, and the same values are written
beside the picture as CSV.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["line", "points", "bars", "stack", "rule"]
COLUMNS = ("panel", "published", "series", "x", "y", "low", "high", "label")
Row = dict[str, object]


@dataclass(frozen=True)
class Series:
    """Values with one name and colour.

    kind: "rule" is a dashed line without a measurement, such as a limit. x: numbers, or names of
    groups of bars. low, high: ends of intervals around y. labels: texts beside points.
    color: the place in the palette; by default that of the series in its panel.
    """

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    kind: Kind = "line"
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    color: int | None = None

    def __post_init__(self) -> None:
        for name in ("y", "low", "high", "labels"):
            values = getattr(self, name)
            if len(values) != len(self.x) and (name == "y" or values):
                raise ValueError(f"{self.name}: {len(values)} {name} for {len(self.x)} x")


@dataclass(frozen=True)
class Axis:
    """scale: linear, log, or symlog, which is linear up to `linear`. low, high: where it ends."""

    label: str
    scale: Literal["linear", "log", "symlog"] = "linear"
    low: float | None = None
    high: float | None = None
    linear: float = 0.01


@dataclass(frozen=True)
class Panel:
    """One pair of axes. published: whose numbers these are and on which device, if not ours."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    published: str = ""
    one: bool = False  # a line at y = 1, where nothing is gained or lost


@dataclass(frozen=True)
class Chart:
    """Panels, row by row. note: what a reader must know, below the picture."""

    title: str
    panels: tuple[Panel, ...]
    columns: int = 1
    note: str = ""
    size: tuple[float, float] = (3.4, 2.7)  # of a panel, in inches

    def rows(self) -> list[Row]:
        """Every value that is drawn."""
        return [row for panel in self.panels for row in _rows(panel)]


@dataclass(frozen=True)
class Picture:
    """A drawing that is not made of axes and series. values: what it shows, as rows of a chart."""

    title: str
    note: str
    size: tuple[float, float]
    values: list[Row] = field(default_factory=list)

    def rows(self) -> list[Row]:
        return self.values

    def draw(self, figure: object) -> None:
        """Into a matplotlib figure of that size."""
        raise NotImplementedError


def _rows(panel: Panel) -> Iterator[Row]:
    for series in panel.series:
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            yield {
                "panel": panel.title,
                "published": panel.published,
                "series": series.name,
                "x": x,
                "y": y,
                "low": series.low[i] if series.low else "",
                "high": series.high[i] if series.high else "",
                "label": series.labels[i] if series.labels else "",
            }


def as_csv(rows: list[Row]) -> str:
    """With six digits: more would differ between machines."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()
