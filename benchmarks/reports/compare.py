"""Two runs of the same benchmarks: what got slower, and by how much.

    python -m benchmarks.reports.compare BEFORE AFTER -o comparison.jsonl

BEFORE and AFTER are folders of result files, measured on one machine in one go.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.records import holds_records
from benchmarks.reports.markdown import geometric_mean, table
from gossamer.bench import Record, read_records

COMPARISONS = Path(__file__).parents[1] / "comparisons"


def pairs(before: Path, after: Path) -> list[tuple[str, Record, Record]]:
    """(file, before, after) of every point that both have, peers left out."""
    found = []
    for path in sorted(after.rglob("*.jsonl")):
        other = before / path.relative_to(after)
        if not (other.is_file() and holds_records(path) and holds_records(other)):
            continue
        old = {(r.point, r.backend): r for r in read_records(other)}
        for new in read_records(path):
            if (key := (new.point, new.backend)) in old:
                found.append((path.stem, old[key], new))
    return found


def line(file: str, before: Record, after: Record) -> dict[str, Any]:
    """One point, with both times."""
    return {
        "suite": file,
        "backend": after.backend,
        "shape": after.shape,
        "dtype": after.dtype,
        "variant": after.variant,
        "before_ms": before.median_ms,
        "after_ms": after.median_ms,
        "ratio": round(after.median_ms / before.median_ms, 4),
        "device": after.device,
        "before": before.revision,
        "after": after.revision,
    }


def summary(lines: list[dict[str, Any]]) -> str:
    """Markdown: after over before by suite and backend, geometric mean and extremes."""
    ratios = defaultdict(list)
    for point in lines:
        ratios[point["suite"], point["backend"]].append(point["ratio"])
    rows = [
        [suite, backend, str(len(some)), *(f"{x:.3f}" for x in (mean, min(some), max(some)))]
        for (suite, backend), some in ratios.items()
        for mean in [geometric_mean(some)]
    ]
    return table(["suite", "backend", "points", "mean", "least", "most"], rows)


def committed() -> str:
    """Markdown of the comparisons that are kept."""
    parts = []
    for path in sorted(COMPARISONS.glob("*.jsonl")):
        lines = [json.loads(text) for text in path.read_text().splitlines()]
        parts.append(f"**{lines[0]['device']}** ({path.stem})\n\n{summary(lines)}")
    return "\n\n".join(parts)


def main(
    before: Path,
    after: Path,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="file for the lines")
    ] = None,
) -> None:
    """Print after / before, and write a JSON line for each point."""
    found = pairs(before, after)
    if not found:
        raise typer.BadParameter(f"{before} and {after} have no point in common")
    lines = [line(*pair) for pair in found]
    typer.echo(summary(lines))
    if output is not None:
        output.write_text("".join(json.dumps(point) + "\n" for point in lines))


if __name__ == "__main__":
    typer.run(main)
