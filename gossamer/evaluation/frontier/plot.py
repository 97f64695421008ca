"""Quality against memory: every measured cache, the frontier, the budget."""

import importlib
import math
from pathlib import Path
from typing import Any

from gossamer.evaluation.frontier.outcome import Outcome, Row
from gossamer.evaluation.plots import COLOR, FORMATS, FRONTIER, STYLE, check

UNIFORM, NAME = "#8a8a8a", "frontier"
LINEAR = 0.01  # of NLL: below it the scale is linear


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Write PNG and SVG; the files. Raises ImportError without matplotlib."""
    check()
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{NAME}.{kind}" for kind in FORMATS]
    with importlib.import_module("matplotlib").rc_context(STYLE):
        figure = _figure(outcome)
        for file in files:
            date = {"Date": None} if file.suffix == ".svg" else None
            figure.savefig(file, dpi=150, metadata=date)
    return files


def _figure(outcome: Outcome) -> Any:
    """Points have numbers; specs are too long to stand beside them."""
    rows = [row for row in outcome.rows if row.role != "dense"]
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(7, 4.5 + 0.14 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(rows, start=1):
        _point(axes, outcome, row, number)
    line = [row for row in outcome.frontier if row.role != "dense"]
    x, y = [row.share for row in line], [row.added for row in line]
    axes.plot(x, y, color=FRONTIER, linewidth=1, zorder=0)
    axes.axvline(outcome.budget.share, color=UNIFORM, linewidth=0.8, linestyle=":")
    axes.axhline(0, color=UNIFORM, linewidth=0.5)
    # Uniform pruning costs tens of times more, and noise makes good caches negative.
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.set_xlabel(f"memory at {outcome.budget.length:,} tokens, share of dense float16")
    axes.set_ylabel("change in NLL per token")
    axes.margins(x=0.1, y=0.1)
    figure.legend(loc="outside lower left", fontsize=6, frameon=False)
    return figure


def _point(axes: Any, outcome: Outcome, row: Row, number: int) -> None:
    best = row is outcome.recommended
    color = UNIFORM if row.role == "uniform" else FRONTIER if best else COLOR
    axes.errorbar(
        *([row.share], [row.added]),
        yerr=None if math.isinf(row.half) else [row.half],
        fmt="*" if best else "o",
        color=color,
        capsize=2,
        markersize=9 if best else 4,
        label=f"{number}: {row.spec}{', recommended' if best else ''}",
    )
    place = (row.share, row.added)
    axes.annotate(f"{number}", place, (4, 4), textcoords="offset points", fontsize=7)
