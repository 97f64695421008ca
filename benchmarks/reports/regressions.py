"""What got slower or less accurate between two folders of records, beyond noise."""

import math
from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import read_lines
from benchmarks.reports.compare import pairs
from benchmarks.reports.markdown import shape_of, table
from benchmarks.reports.ops import NOISE
from gossamer.bench import Record

ERRORS = 2.0  # times as large an error is not chance
LEAST_ERROR = 1e-6  # rounding of float32
COLUMNS = ["records", "point", "by", "what", "before", "after", ""]


@dataclass(frozen=True)
class Change:
    """One point that differs by more than noise. ratio: after / before; above 1 is worse."""

    file: str
    point: str
    by: str
    what: str
    before: str
    after: str
    ratio: float

    @property
    def worse(self) -> bool:
        return self.ratio > 1

    @property
    def cells(self) -> list[str]:
        told = f"{self.ratio:.2f}x {'worse' if self.worse else 'of before'}"
        return [self.file, self.point, self.by, self.what, self.before, self.after, told]


def changes(before: Path, after: Path) -> tuple[list[Change], int]:
    """The worst first, and how many points both have. ValueError where they share none.

    A time has changed when the medians differ by more than 3% and the spans from the 10th to the
    90th percentile do not touch; quality when the 95% intervals do not.
    """
    for folder in (before, after):
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder of records")
    common = pairs(before, after)
    found = [change for pair in common for change in _of_records(*pair)]
    compared = len(common)
    for path in sorted(after.rglob("*.jsonl")):
        other = before / path.relative_to(after)
        if other.is_file():
            made, count = _of_quality(other, path)
            found += made
            compared += count
    if not compared:
        raise ValueError(f"{before} and {after} have no point in common")
    return sorted(found, key=lambda change: -change.ratio), compared


def _of_records(file: str, old: Record, new: Record) -> list[Change]:
    if old.device != new.device:
        raise ValueError(f"{file}: {old.device} before, {new.device} after; must be one device")
    about = file, f"{shape_of(new)} {new.dtype} {new.variant}".strip(), new.backend
    found = []
    ratio = new.median_ms / old.median_ms
    apart = new.low_ms > old.high_ms or new.high_ms < old.low_ms
    if apart and not 1 / NOISE <= ratio <= NOISE:
        was, now = (f"{r.median_ms:.4g} ms" for r in (old, new))
        found.append(Change(*about, "time", was, now, ratio))
    if new.relative_error > max(ERRORS * old.relative_error, LEAST_ERROR):
        was, now = (f"{r.relative_error:.3g}" for r in (old, new))
        ratio = new.relative_error / max(old.relative_error, LEAST_ERROR)
        found.append(Change(*about, "relative error", was, now, ratio))
    return found


def _of_quality(before: Path, after: Path) -> tuple[list[Change], int]:
    """Of rows of `benchmarks.end_to_end.quality`; no other lines have a change in NLL."""
    old = {row["spec"]: row for row in read_lines(before) if "nll_change" in row}
    new = [row for row in read_lines(after) if row.get("spec") in old and "nll_change" in row]
    found = []
    for row in new:
        before_row = old[row["spec"]]
        difference = row["nll_change"] - before_row["nll_change"]
        if abs(difference) > row["nll_half"] + before_row["nll_half"]:
            was, now = (f"{r['nll_change']:+.4f} ± {r['nll_half']:.4f}" for r in (before_row, row))
            ratio = math.exp(difference)  # of perplexities
            found.append(Change(after.stem, f"`{row['spec']}`", "", "NLL", was, now, ratio))
    return found, len(new)


def regressions_table(found: list[Change], compared: int) -> str:
    """What got worse, then how much got better."""
    worse = [change for change in found if change.worse]
    better = len(found) - len(worse)
    head = f"{compared} points in common: {len(worse)} worse, {better} better, beyond noise."
    return f"{head}\n\n{table(COLUMNS, [c.cells for c in worse])}" if worse else head
