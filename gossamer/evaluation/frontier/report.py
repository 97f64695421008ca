"""Tables and the figure of what was measured: quality against memory and against time."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from gossamer import plotting
from gossamer.evaluation.frontier.outcome import MeasuredCache, Outcome
from gossamer.evaluation.plots import save

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
    with plotting.style():
        return save(_figure(outcome), folder / NAME)


def _figure(outcome: Outcome) -> Any:
    """Against memory with speed as colour and, where one is known, against speed. Points have
    numbers, as specs are too long to stand next to them."""
    rows = [row for row in outcome.rows if row.role != "dense"]
    timed = any(_factor(row) is not None for row in rows)
    figure = plotting.new_figure(10 if timed else 7, 4.5 + 0.14 * len(rows))
    memory, *others = figure.subplots(1, 1 + timed, sharey=True, squeeze=False)[0]
    shading = _shading(rows)
    for number, row in enumerate(rows, start=1):
        _point(memory, outcome, row, row.share, number, shading, labelled=True)
        for time in others:
            if (factor := _factor(row)) is not None:
                _point(time, outcome, row, factor, number, shading)
    line = [row for row in outcome.frontier if row.role != "dense"]
    x, y = [row.share for row in line], [row.added for row in line]
    memory.plot(x, y, color=plotting.ORANGE, linewidth=1, zorder=0)
    memory.axvline(outcome.budget.share, color=UNIFORM, linewidth=0.8, linestyle=":")
    for axes in (memory, *others):
        axes.axhline(0, color=UNIFORM, linewidth=0.5)
        # Uniform pruning costs tens of times more, and noise makes good caches negative.
        axes.set_yscale("symlog", linthresh=LINEAR)
        axes.margins(x=0.1, y=0.1)
    memory.set_xlabel(f"memory at {outcome.budget.length:,} tokens, share of dense float16")
    memory.set_ylabel("change in NLL per token")
    for time in others:
        time.axvline(1, color=UNIFORM, linewidth=0.8, linestyle=":")
        time.set_xlabel("decode attention, times as fast as dense")
        figure.colorbar(shading, ax=[memory, time], label="times as fast as dense")
    figure.legend(loc="outside lower left", fontsize=6, frameon=False)
    _numbers(memory, [(row.share, row) for row in rows], (x, y))
    for time in others:
        _numbers(time, [(_factor(row), row) for row in rows], ((), ()))
    return figure


def _numbers(
    axes: Any,
    places: list[tuple[float | None, MeasuredCache]],
    line: tuple[Sequence[float], Sequence[float]],
) -> None:
    """Beside the points, off the bars and the line."""
    labels = plotting.Labels(axes, 7)
    labels.keep_off_line(*line)
    known = [(n, x, row) for n, (x, row) in enumerate(places, start=1) if x is not None]
    for _, x, row in known:
        labels.keep_off_points([x], [row.added], 3.5)
        if not math.isinf(row.half):
            labels.keep_off_line([x, x], [row.added - row.half, row.added + row.half])
    for number, x, row in known:
        labels.write(x, row.added, f"{number}")


def _factor(row: MeasuredCache) -> float | None:
    return None if row.speed is None else row.speed.against_dense


def _shading(rows: Sequence[MeasuredCache]) -> Any:
    """Colours of speeds, from the slowest to the fastest."""
    known = [factor for row in rows if (factor := _factor(row)) is not None] or [1.0]
    colours = plotting.module("matplotlib.colors")
    scale = colours.Normalize(min(known), max(*known, min(known) + 0.01))
    mappable = plotting.module("matplotlib.cm").ScalarMappable
    return mappable(scale, cmap="viridis_r")


def _point(
    axes: Any,
    outcome: Outcome,
    row: MeasuredCache,
    x: float,
    number: int,
    shading: Any,
    *,
    labelled: bool = False,
) -> None:
    best, factor = row is outcome.recommended, _factor(row)
    label = f"{number}: {row.spec}{', recommended' if best else ''}"
    plain = UNIFORM if row.role == "uniform" else plotting.ORANGE if best else plotting.BLUE
    axes.errorbar(
        *([x], [row.added]),
        yerr=None if math.isinf(row.half) else [row.half],
        fmt="*" if best else "s" if row.role == "uniform" else "o",
        color=plain if factor is None else shading.to_rgba(factor),
        capsize=2,
        markersize=11 if best else 5,
        label=label if labelled else None,
    )
