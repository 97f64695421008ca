"""Tables and the figure of what was measured: quality against memory, frontier and budget."""

import importlib
import math
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gossamer.evaluation.frontier.outcome import MeasuredCache, Outcome
from gossamer.evaluation.plots import COLOR, FRONTIER, STYLE, check, save

COLUMNS = (
    "cache", "share", "layout", "bytes per token", "decode against dense", "change in NLL",
    "less than uniform", "",
)  # fmt: skip
NAMES = {"dense": "dense", "uniform": "uniform pruning", "pair": "", "variant": ""}
UNIFORM, NAME = "#8a8a8a", "frontier"
LINEAR = 0.01  # of NLL: below it the scale is linear


def rich_table(outcome: Outcome) -> Table:
    """Small caches first; the recommended one is bold."""
    table = Table(title=heading(outcome), title_justify="left")
    table.add_column(COLUMNS[0], overflow="fold")
    for name in COLUMNS[1:-1]:
        table.add_column(name, justify="right")
    table.add_column(COLUMNS[-1])
    for row in outcome.rows:
        style = "bold" if row is outcome.recommended else ""
        table.add_row(*map(escape, cells(outcome, row)), style=style)
    return table


def markdown(outcome: Outcome) -> str:
    """The same for a page."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS)]
    for row in outcome.rows:
        spec, *others = cells(outcome, row)
        lines.append([f"`{spec}`", *others])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{heading(outcome)}\n\n{table}\n\n{verdict(outcome)}\n"


def heading(outcome: Outcome) -> str:
    budget = outcome.budget
    return (
        f"Budget {budget.text} of dense float16 at {budget.length:,} tokens; "
        f"dense perplexity {outcome.perplexity:.3f}"
    )


def verdict(outcome: Outcome) -> str:
    """The recommendation and its reason, one line."""
    return f"Use --kv {outcome.recommended.spec}: {outcome.reason()}"


def cells(outcome: Outcome, row: MeasuredCache) -> tuple[str, ...]:
    """In the order of COLUMNS."""
    ratio = outcome.times_less(row)
    less = "" if ratio is None else f"{ratio:.1f}x"
    if ratio is None and row.role != "dense" and row.added <= 0:
        less = "no loss seen"
    marks = [NAMES[row.role]]
    marks += ["frontier"] if row in outcome.frontier else []
    marks += ["recommended"] if row is outcome.recommended else []
    marks += ["slow"] if row.speed is not None and row.speed.slow else []
    return (
        row.spec,
        f"{row.share:.1%}",
        f"{row.layout_share:.1%}",
        f"{row.bytes_per_token:,.0f}",
        "" if row.speed is None else row.speed.short,
        _change(row),
        less,
        ", ".join(mark for mark in marks if mark),
    )


def _change(row: MeasuredCache) -> str:
    if row.change is None:
        return ""
    half = "" if math.isinf(row.half) else f" ± {row.half:.4f}"
    return f"{row.added:+.4f}{half}"


# ---- the figure ----------------------------------------------------------------------------------


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Write PNG and SVG; the files. Raises ImportError without matplotlib."""
    check()
    folder.mkdir(parents=True, exist_ok=True)
    with importlib.import_module("matplotlib").rc_context(STYLE):
        return save(_figure(outcome), folder / NAME)


def _figure(outcome: Outcome) -> Any:
    """Points have numbers; specs are too long to stand next to them."""
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


def _point(axes: Any, outcome: Outcome, row: MeasuredCache, number: int) -> None:
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
