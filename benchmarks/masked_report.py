"""Tables of masked attention, made from result lines; a dash where there is none yet."""

import math
from collections import defaultdict
from collections.abc import Iterable

from benchmarks.markdown import NOTHING, ms, speed_up, table
from benchmarks.masked_plans import STOF
from gossamer.bench import Record

OP = "masked_attention"
Key = tuple[str, tuple[int, ...], str]  # mask, shape, dtype


def mask_of(record: Record) -> str:
    return record.variant.split()[0].removeprefix("mask=")


def candidate_of(record: Record) -> str | None:
    """Which way of ours it is: "cuda 64x32 cut"; None for a peer."""
    _, found, name = record.variant.partition("candidate=")
    return name if found else None


class Points:
    """Records by point."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records: dict[Key, list[Record]] = defaultdict(list)
        for record in records:
            if record.op == OP:
                key = (mask_of(record), tuple(record.shape), record.dtype)
                self.records[key].append(record)

    def ours(self, key: Key) -> Record | None:
        return _fastest(r for r in self.records[key] if candidate_of(r) is not None)

    def flex(self, key: Key) -> Record | None:
        return _fastest(r for r in self.records[key] if r.backend.startswith("flex"))

    def sdpa(self, key: Key) -> Record | None:
        return _fastest(r for r in self.records[key] if r.backend.startswith("sdpa"))


def _fastest(records: Iterable[Record]) -> Record | None:
    return min(records, key=lambda r: r.median_ms, default=None)


def headline(records: list[Record]) -> str:
    """Ours beside the fastest FlexAttention and SDPA."""
    points = Points(records)
    rows = []
    for key in sorted(points.records, key=lambda k: (k[1][0], k[1][2], k[0])):
        mask, shape, _ = key
        ours, flex, sdpa = points.ours(key), points.flex(key), points.sdpa(key)
        if flex is None and sdpa is None:
            continue
        way = NOTHING if ours is None else str(candidate_of(ours))
        names = [str(shape[0]), f"{shape[2]:,}", str(shape[3]), mask, way]
        peers = [ms(flex), ms(sdpa), ms(ours), speed_up(ours, flex), speed_up(ours, sdpa)]
        rows.append(names + peers)
    columns = ["batch", "n", "head_dim", "mask", "way", "FlexAttention", "SDPA", "gossamer"]
    return table([*columns, "over FlexAttention", "over SDPA"], rows)


def mean_speed_up(records: list[Record]) -> float:
    """Geometric mean over FlexAttention, over STOF's masks."""
    points = Points(records)
    ratios = []
    for key in points.records:
        ours, flex = points.ours(key), points.flex(key)
        if key[0] in STOF and ours is not None and flex is not None:
            ratios.append(math.log(flex.median_ms / ours.median_ms))
    return math.exp(sum(ratios) / len(ratios)) if ratios else math.nan
