"""Tables of what was measured: for terminals and for Markdown pages."""

import math

from rich.markup import escape
from rich.table import Table

from gossamer.evaluation.frontier.outcome import Outcome, Row

COLUMNS = ("cache", "share", "layout", "bytes per token", "change in NLL", "less than uniform", "")
NAMES = {"dense": "dense", "uniform": "uniform pruning", "pair": "", "variant": ""}


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
        f"Budget {budget.words} of dense float16 at {budget.length:,} tokens; "
        f"dense perplexity {outcome.perplexity:.3f}"
    )


def verdict(outcome: Outcome) -> str:
    """The recommendation and its reason, one line."""
    return f"Use --kv {outcome.recommended.spec}: {outcome.reason()}"


def cells(outcome: Outcome, row: Row) -> tuple[str, ...]:
    """In the order of COLUMNS."""
    ratio = outcome.times_less(row)
    less = "" if ratio is None else f"{ratio:.1f}x"
    if ratio is None and row.role != "dense" and row.added <= 0:
        less = "no loss seen"
    marks = [NAMES[row.role]]
    marks += ["frontier"] if row in outcome.frontier else []
    marks += ["recommended"] if row is outcome.recommended else []
    return (
        row.spec,
        f"{row.share:.1%}",
        f"{row.layout_share:.1%}",
        f"{row.bytes_per_token:,.0f}",
        _change(row),
        less,
        ", ".join(mark for mark in marks if mark),
    )


def _change(row: Row) -> str:
    if row.change is None:
        return ""
    half = "" if math.isinf(row.half) else f" ± {row.half:.4f}"
    return f"{row.added:+.4f}{half}"
