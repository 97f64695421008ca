"""Records as a table for people."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from gossamer.bench.peers import Peers
from gossamer.bench.record import Record


def records_table(records: Sequence[Record], baseline: str = "eager") -> Table:
    """One row per record; speed-up over the `baseline` backend of the same point.

    Where there is no such record, over the fastest peer.
    """
    title = records[0].device if records else "nothing measured"
    table = Table(title=title, title_justify="left")
    for name in ("op", "shape", "dtype", "variant", "backend"):
        table.add_column(name)
    for name in ("ms", "speed-up", "GB/s", "of copy", "max error"):
        table.add_column(name, justify="right")
    baselines = {r.point: r.median_ms for r in records if r.backend == baseline}
    peers = Peers(records)
    previous = None
    for record in records:
        if previous is not None and record.point != previous:
            table.add_section()
        previous = record.point
        peer = peers(record)
        base = baselines.get(previous) or (peer.median_ms if peer else None)
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
