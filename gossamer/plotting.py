"""What all figures share: palette, axes, how they are made and saved.

matplotlib is an extra: pip install gossamer[plots].
"""

import importlib
import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

BLUE, ORANGE, GREY = "#0b6e99", "#d9730d", "#777777"
GREEN, PURPLE, RED, BROWN, PINK = "#3f8f4f", "#7a4f9e", "#c4462d", "#8a6a3b", "#d67aa8"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, BROWN, PINK, GREY)
EDGE, GRID, PAPER = "#888888", "#e6e6e6", "#faf3e6"
STYLE: dict[str, Any] = {
    "svg.hashsalt": "gossamer",  # the same ids in every run
    "svg.fonttype": "none",  # text as text, so no font of this machine is in the file
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}
DPI = 150
# Of a file: nothing that differs from one day or machine to another.
SAME_FILE = {"Date": None, "Creator": None}
NUMBER = re.compile(r"-?\d+\.\d{3,}")
COORDINATES = re.compile(r' (?:d|x|y|x1|x2|y1|y2|width|height|points|transform|viewBox)="[^"]*"')


def module(name: str) -> Any:
    """One of matplotlib's. By name: the type checker and most users do not have it.

    Raises ImportError that says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'gossamer[plots]'") from None


def check() -> None:
    """Raises ImportError where figures cannot be drawn; better known before a long run."""
    module("matplotlib")


@contextmanager
def style(**more: Any) -> Iterator[None]:
    """What is drawn and saved inside looks like all our figures."""
    with module("matplotlib").rc_context(STYLE | more):
        yield


def new_figure(width: float, height: float) -> Any:
    """In inches. It belongs to no window and no global state."""
    return module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Path, **metadata: str) -> None:
    """The format follows from the name; the same bytes for the same figure. metadata: of SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        path.write_text(svg(figure, **metadata))
    else:
        figure.savefig(path, dpi=DPI)


def svg(figure: Any, **metadata: str) -> str:
    """The text of an SVG file."""
    text = io.StringIO()
    figure.savefig(text, format="svg", dpi=DPI, metadata=SAME_FILE | metadata)
    return _shortened(text.getvalue())


def _shortened(text: str) -> str:
    """With coordinates of a hundredth of a point, without names of groups: half as long."""
    short = COORDINATES.sub(lambda found: NUMBER.sub(_rounded, found[0]), text)
    short = re.sub(r'<g id="[^"]*"', "<g", re.sub(r"\n\s+<", "\n<", short))
    return re.sub(r'\s*\n(?=[LQCMz"])', " ", short)


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def plain_ticks(axis: Any) -> None:
    """1,000 and 0.1 instead of powers."""
    axis.set_major_formatter(module("matplotlib.ticker").StrMethodFormatter("{x:,g}"))


def plain_log_ticks(axis: Any, subs: tuple[float, ...] = (1, 2, 5)) -> None:
    """At these multiples of powers; with none of them, evenly spread."""
    ticker = module("matplotlib.ticker")
    locator = ticker.LogLocator(subs=subs) if subs else ticker.MaxNLocator(5)
    axis.set_major_locator(locator)
    axis.set_minor_locator(ticker.NullLocator())
    plain_ticks(axis)


# ---- labels of points ----------------------------------------------------------------------------

# Where a label may stand, in points from its point, and its alignment; the first free one.
NEARBY = [(5, 3), (5, -8), (-5, 3), (-5, -8), (8, -2), (-8, -2), (0, 6), (0, -11)]
FURTHER = [(x, y) for x in (5, -5, 12, -12, 22, -22, 32, -32) for y in (3, -8, 12, -17, 20, -26)]
PLACES = [
    (dx, dy, "left" if dx > 0 else "right" if dx < 0 else "center")
    for dx, dy in (*NEARBY, *sorted(FURTHER, key=lambda place: math.hypot(*place)))
]
NEAR = 14  # points; a label that is further away has a line to its point
LINE_STEP = 3  # points between the places of a line that labels keep off
Box = tuple[float, float, float, float]


class Labels:
    """Texts beside points of axes, off each other and off what was drawn. In points, not pixels."""

    def __init__(self, axes: Any, size: float) -> None:
        """After everything is drawn: places are those of the figure as it is now."""
        axes.figure.draw_without_rendering()
        self.axes, self.size, self.scale = axes, size, 72 / axes.figure.dpi
        edges = axes.get_window_extent()
        self.inside = [edge * self.scale for edge in (edges.x0, edges.y0, edges.x1, edges.y1)]
        self.taken: list[Box] = []

    def keep_off_points(self, x: Sequence[Any], y: Sequence[float], radius: float = 2.5) -> None:
        for px, py in map(self._at, x, y):
            self.taken.append((px - radius, py - radius, px + radius, py + radius))

    def keep_off_line(self, x: Sequence[Any], y: Sequence[float]) -> None:
        """Between points that follow each other."""
        places = [self._at(*place) for place in zip(x, y, strict=True)]
        for (x0, y0), (x1, y1) in pairwise(places):
            steps = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / LINE_STEP))
            for step in range(steps + 1):
                px, py = x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps
                self.taken.append((px - 1.5, py - 1.5, px + 1.5, py + 1.5))

    def write(self, x: Any, y: float, text: str) -> None:
        """At the first of PLACES that is free and inside; else where it overlaps least."""
        at, wide, best = self._at(x, y), 0.56 * self.size * len(text), None
        for dx, dy, align in PLACES:
            left = at[0] + dx - {"left": 0.0, "right": wide, "center": wide / 2}[align]
            box = (left, at[1] + dy - 1, left + wide, at[1] + dy + self.size)
            low, high = self.inside[:2], self.inside[2:]
            out = any(a < b for a, b in zip(box[:2], low, strict=True))
            out = out or any(a > b for a, b in zip(box[2:], high, strict=True))
            cost = sum(_overlap(other, box) for other in self.taken) + 1e4 * out
            if best is None or cost < best[0]:
                best = cost, (dx, dy), align, box
            if not cost:
                break
        assert best is not None
        _, offset, align, box = best
        self.taken.append(box)
        style: dict[str, Any] = {"fontsize": self.size, "color": "#333333", "ha": align}
        style["zorder"] = 4
        if math.hypot(*offset) > NEAR:
            style["arrowprops"] = {"arrowstyle": "-", "lw": 0.5, "color": GREY, "shrinkB": 3}
            style["arrowprops"]["shrinkA"] = 0
        self.axes.annotate(text, (x, y), offset, textcoords="offset points", **style)

    def _at(self, x: Any, y: float) -> tuple[float, float]:
        px, py = self.axes.transData.transform((x, y))
        return px * self.scale, py * self.scale


def _overlap(a: Box, b: Box) -> float:
    """Square points."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, width) * max(0.0, height)
