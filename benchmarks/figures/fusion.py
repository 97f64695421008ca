"""Whole models with fused operators: what `benchmarks.end_to_end.fusion` measured, as panels.

Its records: op FILE, shape [batch, tokens], variant `model, mask`, backend one of METHODS, and for
the ablation one of PARTS. facts of "gossamer": tuning_seconds, and the parts of it as
tuning_NAME_seconds.
"""

from benchmarks.figures.chart import Axis, Panel, Series
from benchmarks.records import Benchmarks, short_model
from gossamer.bench import Record

FILE = "fusion_end_to_end"
OURS, BASE = "gossamer", "eager"
METHODS = {
    "compile": "torch.compile",
    "compile_max_autotune": "torch.compile, max-autotune",
    "compile_flex": "torch.compile + FlexAttention",
    OURS: "gossamer",
}
PARTS = {
    "gossamer_attention": "attention alone",
    "gossamer_fusion": "fusion alone",
    OURS: "gossamer",
}
MISSING = "Ours: not measured yet (`python -m benchmarks.end_to_end.fusion` on a GPU)."


def note(found: Benchmarks) -> str:
    """What a chart says of our part of it."""
    records = found.known(FILE)
    return f"Ours: {records[0].device}, {records[0].dtype}." if records else MISSING


def times(found: Benchmarks, names: dict[str, str]) -> list[Panel]:
    """For each size, how many times as fast as eager PyTorch, by model and mask."""
    panels = []
    for shape, records in _by_shape(found).items():
        base = {r.variant: r.median_ms for r in records if r.backend == BASE}
        series = []
        for number, (backend, name) in enumerate(names.items()):
            own = [r for r in records if r.backend == backend and r.variant in base]
            x = tuple(_place(r) for r in own)
            y = tuple(base[r.variant] / r.median_ms for r in own)
            if own:
                series.append(Series(name, x, y, "bars", color=number))
        axis = Axis("speed-up over eager", "log")
        panels.append(Panel(_title(shape), Axis(""), axis, tuple(series), one=True))
    return [panel for panel in panels if panel.series]


def tuning_parts(found: Benchmarks) -> list[Panel]:
    """Seconds of tuning by what they were spent on."""
    panels = []
    for shape, records in _by_shape(found).items():
        own = [r for r in records if r.backend == OURS]
        parts = sorted(
            {f for r in own for f in r.facts if f.startswith("tuning_")} - {"tuning_seconds"}
        )
        x = tuple(_place(r) for r in own)
        series = tuple(
            Series(
                part.removeprefix("tuning_").removesuffix("_seconds").replace("_", " "),
                x,
                tuple(float(r.facts.get(part, 0)) for r in own),
                "stack",
            )
            for part in parts
        )
        panels.append(Panel(_title(shape), Axis(""), Axis("seconds"), series))
    return [panel for panel in panels if panel.series]


def tuning_seconds(found: Benchmarks) -> list[Panel]:
    """All of it."""
    panels = []
    for shape, records in _by_shape(found).items():
        own = [r for r in records if r.backend == OURS and "tuning_seconds" in r.facts]
        x, y = tuple(_place(r) for r in own), tuple(float(r.facts["tuning_seconds"]) for r in own)
        if own:
            series = (Series("gossamer", x, y, "bars", color=3),)
            panels.append(Panel(_title(shape), Axis(""), Axis("seconds of tuning", "log"), series))
    return panels


def _by_shape(found: Benchmarks) -> dict[tuple[int, ...], list[Record]]:
    by_shape: dict[tuple[int, ...], list[Record]] = {}
    for record in found.known(FILE):
        by_shape.setdefault(tuple(record.shape), []).append(record)
    return by_shape


def _place(record: Record) -> str:
    """Model and mask."""
    return " ".join(short_model(record.variant)).removesuffix(" ").replace("mask=", "")


def _title(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]:,} tokens: ours"
