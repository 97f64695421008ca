"""Wins and losses of every op: the backend that users get against the fastest peer."""

from benchmarks.reports.markdown import geometric_mean, shape_of, table
from benchmarks.reports.ops import NOISE
from benchmarks.suites.masked_cases import OP as MASKED
from gossamer.bench import Record
from gossamer.bench.peers import Peers, defaults

COLUMNS = ["op", "points", "faster", "equal", "slower", "mean", "least", "at"]


def wins_table(records: list[Record]) -> str:
    """A row for each op. Masked attention has a table of its own: its lines are candidates."""
    rows = []
    for op in sorted({r.op for r in records if r.op != MASKED}):
        own = [r for r in records if r.op == op]
        peer_of = Peers(own)
        pairs = [(r, peer) for r in defaults(own) if (peer := peer_of(r)) is not None]
        if not pairs:
            continue
        ratios = [peer.median_ms / r.median_ms for r, peer in pairs]
        slower = sum(ratio * NOISE < 1 for ratio in ratios)
        faster = sum(ratio > NOISE for ratio in ratios)
        counts = (len(pairs), faster, len(pairs) - faster - slower, slower)
        worst, (record, _) = min(zip(ratios, pairs, strict=True), key=lambda pair: pair[0])
        place = f"{shape_of(record)} {record.dtype} {record.variant}".strip()
        means = (f"{geometric_mean(ratios):.2f}x", f"{worst:.2f}x")
        rows.append([f"`{op}`", *map(str, counts), *means, place])
    return table(COLUMNS, rows)
