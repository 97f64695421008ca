"""Tables of what caches cost in quality, made from the rows of benchmarks.end_to_end.quality."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.quality import CHOSEN, CODED, ROWS
from benchmarks.reports.markdown import table

FOLDER = Path(__file__).parents[1] / "quality"
Row = dict[str, Any]


def quality_table(folder: Path = FOLDER) -> str:
    """The engine with every cache."""
    return _tables(folder, lambda row: not row["peer"] and row["spec"] != "dense", simulated=True)


def peer_table(folder: Path = FOLDER) -> str:
    """Other methods."""
    return _tables(folder, lambda row: row["peer"])


def chosen_table(folder: Path = FOLDER) -> str:
    """The caches that were chosen for a budget, next to quantization alone."""
    return _tables(
        folder, lambda row: row["spec"] in (*CODED, *CHOSEN) or row["spec"].startswith("kivi")
    )


def _tables(folder: Path, wanted: Callable[[Row], bool], simulated: bool = False) -> str:
    parts = []
    for file in sorted(folder.glob("*.jsonl")):
        found = [json.loads(line) for line in file.read_text().splitlines()]
        columns = ["cache", "bytes", "change in NLL", *["simulated"] * simulated, "lookup"]
        shown = sorted(filter(wanted, found), key=lambda row: row["spec"] not in CODED)
        rows = [quality_cells(row, simulated) for row in shown]
        parts.append(f"{_heading(found[0], shown)}\n\n{table(columns, rows)}")
    return "\n\n".join(parts)


def quality_rows(file: Path = FOLDER / ROWS.name) -> list[Row]:
    """Every cache of one model."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def _heading(dense: Row, shown: list[Row]) -> str:
    revisions = ", ".join(dict.fromkeys(row["revision"] for row in shown))
    return (
        f"**{dense['model']}** ({dense['tokens']:,} tokens, dense perplexity "
        f"{dense['perplexity']:.2f} and lookup {dense['lookup']:.0%}; {dense['device']}, "
        f"{dense['dtype']}, measured at {revisions})"
    )


def quality_cells(row: Row, simulated: bool = False) -> list[str]:
    cells = [
        f"`{row['spec']}`",
        f"{row['share']:.1%}",
        f"{row['nll_change']:+.4f} ± {row['nll_half']:.4f}",
    ]
    if simulated:
        cells.append("" if row["simulated"] is None else f"{row['simulated']:+.3f}")
    low, high = (round(100 * row[f"lookup_{end}"]) for end in ("low", "high"))
    return [*cells, f"{row['lookup']:.0%} ({low} to {high})"]
