"""The engine's table, made from result lines."""

from benchmarks.markdown import table
from gossamer.bench import Record

WHAT = {"engine_decode": "decode step", "engine_throughput": "equal KV memory"}
COLUMNS = [
    "what",
    "model",
    "sequences x context",
    "dtype",
    "by",
    "cache",
    "step",
    "tokens/s",
    "of floor",
    "KV cache",
]


def engine(records: list[Record]) -> str:
    """Decode steps and throughput, of the engine and of transformers where both ran."""
    rows = [_row(r) for r in records if r.op in WHAT]
    return table(COLUMNS, rows) if rows else "Not measured yet."


def _row(record: Record) -> list[str]:
    model, cache, *_ = _names(record.variant)
    steps = record.facts.get("steps", 1)
    kv = record.facts.get("kv_bytes")
    floor = f"{record.ceiling_share:.0%}" if record.op == "engine_decode" else ""
    return [
        WHAT[record.op],
        model,
        " x ".join(f"{n:,}" for n in record.shape),
        record.dtype,
        record.backend,
        f"`{cache}`",
        f"{record.median_ms / steps:.3g} ms",
        f"{record.facts['tokens_per_second']:,.4g}",
        floor,
        "" if kv is None else f"{kv / 1e9:,.2f} GB",
    ]


def _names(variant: str) -> tuple[str, str]:
    """`model, cache, how` -> model and cache, whose own commas have no space after them."""
    model, cache, *_ = variant.split(", ")
    return model.removesuffix(" with random weights"), cache
