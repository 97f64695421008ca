"""The headline table, in Markdown, from the committed result files."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.bench import Record, read_records
from gossamer.bench.suite import RESULTS

HEADLINE = [16, 128, 4096]
VARIANTS = ("", "approximate=none", "b,c=full")
COLUMNS = ("op", "dtype", "backend", "eager", "gossamer", "speed-up", "largest shape", "of copy")


def device_table(records: list[Record]) -> str:
    """One row per op, dtype and backend: time at the headline shape, bandwidth at the largest."""
    lines = [_row(COLUMNS), _row(["---"] * len(COLUMNS))]
    headline = [r for r in records if r.shape == HEADLINE and r.variant in VARIANTS]
    eager = {(r.op, r.dtype): r.median_ms for r in headline if r.backend == "eager"}
    for record in headline:
        if record.backend in ("eager", "addcmul"):
            continue
        base = eager[record.op, record.dtype]
        largest = _largest(records, record)
        lines.append(
            _row(
                [
                    f"`{record.op}`",
                    record.dtype,
                    record.backend,
                    f"{base:.3g} ms",
                    f"{record.median_ms:.3g} ms",
                    f"{base / record.median_ms:.2f}x",
                    "x".join(map(str, largest.shape)),
                    f"{largest.ceiling_share:.0%}",
                ]
            )
        )
    return "\n".join(lines)


def _largest(records: list[Record], like: Record) -> Record:
    def same(r: Record) -> bool:
        return (r.op, r.dtype, r.backend, r.variant) == (
            like.op,
            like.dtype,
            like.backend,
            like.variant,
        )

    return max(filter(same, records), key=lambda r: r.bytes)


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def report(results: Path = RESULTS) -> str:
    """All devices' tables, each under the device's name."""
    parts = []
    for folder in sorted(f for f in results.iterdir() if f.is_dir()):
        records = [r for file in sorted(folder.glob("*.jsonl")) for r in read_records(file)]
        if not records:
            continue
        first = records[0]
        software = ", ".join(f"{k} {v}" for k, v in first.versions.items())
        heading = f"**{first.device}** (copy {first.ceiling_gbps:.0f} GB/s; {software})"
        parts.append(f"{heading}\n\n{device_table(records)}")
    return "\n\n".join(parts)


def main(
    results: Annotated[Path, typer.Option(help="folder of the result files")] = RESULTS,
) -> None:
    typer.echo(report(results))


if __name__ == "__main__":
    typer.run(main)
