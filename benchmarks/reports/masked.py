"""Tables of masked attention, made from result lines: what the selector takes, and peers."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from benchmarks.reports.markdown import NOTHING, geometric_mean, ms, speed_up, table
from benchmarks.reports.masked_regret import PLACES, samples_of
from benchmarks.suites.masked_cases import OP, STOF
from gossamer.attention import coefficients as shipped
from gossamer.attention.coefficient_files import read
from gossamer.attention.cost import Model
from gossamer.attention.fitting import by_mask, chosen_of, held_out
from gossamer.bench import Record

Key = tuple[str, tuple[int, ...]]  # mask and shape
H200 = Path(next(iter(shipped.__path__))) / "nvidia-h200.json"


@cache
def _model() -> Model:
    return read(H200).model


class Points:
    """Records by point."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records: dict[Key, list[Record]] = defaultdict(list)
        for record in records:
            if record.op == OP:
                mask = record.variant.split()[0].removeprefix("mask=")
                self.records[mask, tuple(record.shape)].append(record)

    def ours(self, key: Key) -> tuple[Record, str] | None:
        """What the selector takes by the shipped coefficients, and how it is called."""
        samples = [(s, r) for r in self.records[key] for s in samples_of([r])]
        if not samples:
            return None
        chosen = chosen_of([s for s, _ in samples], _model())
        return next(r for s, r in samples if s is chosen), str(chosen.candidate)

    def peer(self, key: Key, name: str) -> Record | None:
        """The fastest one whose name begins so."""
        found = (r for r in self.records[key] if r.backend.startswith(name))
        return min(found, key=lambda r: r.median_ms, default=None)


def headline(records: list[Record]) -> str:
    """What the selector takes, next to the fastest FlexAttention and SDPA."""
    points = Points(records)
    rows = []
    for key in sorted(points.records, key=lambda k: (k[1][0], k[1][2], k[0])):
        mask, shape = key
        found, flex, sdpa = points.ours(key), points.peer(key, "flex"), points.peer(key, "sdpa")
        dense = sdpa is not None and mask in ("causal", "full") and shape[2] == 4096
        if found is None or not (flex is not None or dense):
            continue
        ours, candidate = found
        names = [str(shape[0]), f"{shape[2]:,}", str(shape[3]), mask, f"`{candidate}`"]
        peers = [_time(flex), ms(sdpa), ms(ours), speed_up(ours, flex), speed_up(ours, sdpa)]
        rows.append(names + peers)
    if not rows:
        return "Not measured yet."
    columns = ["batch", "n", "head_dim", "mask", "candidate", "FlexAttention", "SDPA", "gossamer"]
    made = table([*columns, "over FlexAttention", "over SDPA"], rows)
    ratios = over_flex(records)
    if not ratios:
        return made
    mean = geometric_mean(ratios.values())
    return f"{made}\n\nOver FlexAttention, geometric mean of {len(ratios)} points: {mean:.2f}x."


def over_flex(records: list[Record]) -> dict[Key, float]:
    """Times as fast as FlexAttention at its best, under the masks that STOF measured."""
    points = Points(records)
    found = {}
    for key in list(points.records):
        ours, flex = points.ours(key), points.peer(key, "flex")
        if ours is not None and flex is not None and key[0] in STOF:
            found[key] = flex.median_ms / ours[0].median_ms
    return found


def regret(records: list[Record]) -> str:
    """How well the selector chooses where it was not fitted."""
    samples = samples_of(records)
    rows = []
    for name, fold in (("a quarter of the points", None), ("one mask", by_mask)):
        found = held_out(samples, PLACES, fold)
        rows.append([name, str(len(found.shares)), f"{found.median:.1%}", f"{found.worst:.1%}"])
    return table(["left out of the fit", "points", "median regret", "worst"], rows)


def host(records: list[Record]) -> str:
    """Host time of calls with a prepared mask, by candidate."""
    rows = []
    for r in records:
        if r.op != "masked_host":
            continue
        mask, candidate = r.variant.removeprefix("mask=").split(" way=")
        times = r.median_ms, r.facts["fastest_series_ms"], r.facts["slowest_series_ms"]
        rows.append([mask, f"`{candidate}`", *(f"{t * 1e3:.1f} us" for t in times)])
    if not rows:
        return "Not measured yet."
    return table(["mask", "candidate", "median", "fastest series", "slowest series"], rows)


def _time(flex: Record | None) -> str:
    """With the setting that was the fastest."""
    return NOTHING if flex is None else f"{ms(flex)} (`{flex.backend.removeprefix('flex_')}`)"
