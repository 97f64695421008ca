"""What all figures share: palette, axes, how they are made and saved.

matplotlib is an extra: pip install gossamer[plots].
"""

import importlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
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
