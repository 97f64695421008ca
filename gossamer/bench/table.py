"""Records as a table for people."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from gossamer.bench.record import Record


def records_table(records: Sequence[Record], baseline: str = "eager") -> Table:
    """One row per record; speed-up over the `baseline` backend of the same point."""
    title = records[0].device if records else "nothing measured"
    table = Table(title=title, title_justify="left")
    for name in ("op", "shape", "dtype", "variant", "backend"):
        table.add_column(name)
    for name in ("ms", f"vs {baseline}", "GB/s", "of copy", "max error"):
        table.add_column(name, justify="right")
    baselines = {_point(r): r.median_ms for r in records if r.backend == baseline}
    previous = None
    for record in records:
        if previous is not None and _point(record) != previous:
            table.add_section()
        previous = _point(record)
        base = baselines.get(previous)
        table.add_row(
            record.op,
            "x".join(map(str, record.shape)),
            record.dtype,
            escape(record.variant),
            record.backend,
            f"{record.median_ms:.4g}",
            f"{base / record.median_ms:.2f}x" if base else "",
            f"{record.gbps:.0f}",
            f"{record.ceiling_share:.0%}",
            f"{record.max_error:.1e}",
        )
    return table


def _point(record: Record) -> tuple[str, tuple[int, ...], str, str]:
    return record.op, tuple(record.shape), record.dtype, record.variant
