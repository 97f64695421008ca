"""Tables for Markdown pages."""

import math
from collections.abc import Iterable, Sequence

from gossamer.bench import Record

NOTHING = "-"  # not measured yet


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def shape_of(record: Record) -> str:
    return "x".join(map(str, record.shape))


def ms(record: Record | None) -> str:
    return NOTHING if record is None else f"{record.median_ms:.3g} ms"


def speed_up(ours: Record | None, other: Record | None) -> str:
    """How many times faster ours is."""
    if ours is None or other is None:
        return NOTHING
    return f"{other.median_ms / ours.median_ms:.2f}x"


def share(record: Record | None) -> str:
    """Of the measured copy bandwidth."""
    return NOTHING if record is None else f"{record.ceiling_share:.0%}"


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))
