"""Whole models with fused operators: what `benchmarks.end_to_end.fusion` measured, as panels.

Its records: op FILE, shape [batch, tokens], variant `model=NAME mask=NAME`, backend one of WAYS. A
tuned one has in its facts what the tuner's time went to, as tune_NAME_s, and all of it as TOTAL.
"""

from collections import defaultdict

from benchmarks.figures.chart import Axis, Panel, Series
from benchmarks.records import Benchmarks, command_of
from benchmarks.reports.markdown import geometric_mean
from gossamer.bench import Record

FILE = "fusion"
BASE, COMPILED = "eager", ("compile", "graphs", "autotune")
FLEX, BOTH = ("flex", "flex-graphs"), ("gossamer", "tuned")
# Ways by what they are called; of several, the fastest counts.
METHODS = {
    "torch.compile, its fastest mode": COMPILED,
    "torch.compile + FlexAttention": FLEX,
    "gossamer": BOTH,
}
PARTS = {"attention alone": ("attention",), "fusion alone": ("fusion",), "gossamer": BOTH}
COLORS = {"gossamer": 4, "torch.compile + FlexAttention": 5}
TUNED, TOTAL = "tuned", "tune_total_s"
NO_PARTS = (TOTAL, "tune_unfused_ms", "tune_ms")
Ways = dict[str, Record]
Points = dict[tuple[int, ...], dict[str, list[Ways]]]  # shape -> model -> its masks


def note(found: Benchmarks) -> str:
    """What a chart says of our part of it."""
    records = found.known(FILE)
    if not records:
        return f"Ours: not measured yet (`{command_of(FILE)}` on a GPU)."
    masks = sorted({_about(record)["mask"] for record in records})
    return f"Ours: {records[0].device}, {records[0].dtype}, means over {', '.join(masks)}."


def _about(record: Record) -> dict[str, str]:
    return dict(part.split("=", 1) for part in record.variant.split())


def points(found: Benchmarks) -> Points:
    """Every way at each mask, by shape and model; small shapes first."""
    ways: dict[tuple[tuple[int, ...], str, str], Ways] = defaultdict(dict)
    for record in found.known(FILE):
        about = _about(record)
        ways[tuple(record.shape), about["model"], about["mask"]][record.backend] = record
    made: Points = {}
    for (shape, model, _), own in sorted(ways.items(), key=lambda item: item[0][0]):
        made.setdefault(shape, {}).setdefault(model, []).append(own)
    return made


def ratio(masks: list[Ways], over: tuple[str, ...], ours: tuple[str, ...]) -> float | None:
    """Geometric mean over masks of how much faster `ours` is; None where no mask has both."""
    ratios = []
    for ways in masks:
        slow = [ways[name].median_ms for name in over if name in ways]
        fast = [ways[name].median_ms for name in ours if name in ways]
        if slow and fast:
            ratios.append(min(slow) / min(fast))
    return geometric_mean(ratios) if ratios else None


def times(found: Benchmarks, methods: dict[str, tuple[str, ...]]) -> list[Panel]:
    """For each shape, how many times as fast as eager PyTorch, by model."""
    panels = []
    for shape, models in points(found).items():
        series = []
        for number, (name, ways) in enumerate(methods.items()):
            made = {m: ratio(masks, (BASE,), ways) for m, masks in models.items()}
            kept = {model: value for model, value in made.items() if value is not None}
            if kept:
                color = COLORS.get(name, number)
                series.append(Series(name, tuple(kept), tuple(kept.values()), "bars", color=color))
        axis = Axis("speed-up over eager", "log")
        panels.append(Panel(_title(shape), Axis(""), axis, tuple(series), one=True))
    return [panel for panel in panels if panel.series]


def _tuned(found: Benchmarks) -> dict[tuple[int, ...], dict[str, dict[str, float]]]:
    """Facts of the tuner by shape and model, means over masks."""
    made: dict[tuple[int, ...], dict[str, dict[str, float]]] = {}
    for shape, models in points(found).items():
        for model, masks in models.items():
            facts = [ways[TUNED].facts for ways in masks if TUNED in ways]
            facts = [own for own in facts if TOTAL in own]
            if facts:
                names = [name for name in facts[0] if name.startswith("tune_")]
                means = {n: sum(own.get(n, 0.0) for own in facts) / len(facts) for n in names}
                made.setdefault(shape, {})[model] = means
    return made


def tuning_parts(found: Benchmarks) -> list[Panel]:
    """Seconds of tuning by what they were spent on."""
    panels = []
    for shape, models in _tuned(found).items():
        parts = sorted({name for own in models.values() for name in own} - set(NO_PARTS))
        series = []
        for number, part in enumerate(parts):
            y = tuple(own.get(part, 0.0) for own in models.values())
            last = part == parts[-1]
            texts = tuple(f"{own[TOTAL]:.0f} s" for own in models.values()) if last else ()
            name = part.removeprefix("tune_").removesuffix("_s")
            series.append(Series(name, tuple(models), y, "stack", labels=texts, color=4 + number))
        panels.append(Panel(_title(shape), Axis(""), Axis("seconds"), tuple(series)))
    return panels


def tuning_seconds(found: Benchmarks) -> list[Panel]:
    """All of it."""
    panels = []
    for shape, models in _tuned(found).items():
        y = tuple(own[TOTAL] for own in models.values())
        series = (Series("gossamer", tuple(models), y, "bars", color=4),)
        panels.append(Panel(_title(shape), Axis(""), Axis("seconds of tuning", "log"), series))
    return panels


def _title(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]:,} tokens: ours"
