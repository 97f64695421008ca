"""The tables of weights in few bits: speed, memory, tokens and quality on a CPU."""

import json
from pathlib import Path

from benchmarks.reports.markdown import table
from gossamer.bench import Record

SPEED = (
    *("weights", "read per step", "decode, tokens/s", "prefill of 512, tokens/s"),
    *("resident after loading", "tokens of `float`, of 20 x 32"),
)
QUALITY = ("weights", "KV cache", "perplexity", "change in NLL")
ROWS = Path(__file__).parents[1] / "quality/weights/weights-smollm2.jsonl"


def speed_table(records: list[Record]) -> str:
    """One sequence, two threads."""
    rows = [_speed_row(r) for r in records if r.op == "engine_weights"]
    return table(SPEED, rows) if rows else "Not measured yet."


def _speed_row(record: Record) -> list[str]:
    facts, name = record.facts, record.variant.split(", ")[1]
    peer = record.backend != "gossamer"
    return [
        record.backend if peer else f"`{name}`",
        f"{record.bytes / 1e6:.0f} MB",
        f"{facts['decode_tokens_per_s']:.0f}",
        f"{facts['prefill_tokens_per_s']:.0f}",
        f"{facts['resident_mb']:.0f} MB",
        f"{facts['same_tokens']:.1%}",
    ]


def quality_table() -> str:
    """Of the committed rows, against float weights with a dense cache."""
    if not ROWS.is_file():
        return "Not measured yet."
    found = [json.loads(line) for line in ROWS.read_text().splitlines()]
    return table(QUALITY, [_quality_row(row) for row in found])


def _quality_row(row: dict[str, object]) -> list[str]:
    change, half = row["nll_change"], row["nll_half"]
    weights = row["weights"] if " " in str(row["weights"]) else f"`{row['weights']}`"
    return [
        f"{weights}",
        f"`{row['kv']}`",
        f"{row['perplexity']:.2f}",
        f"{change:+.4f} ± {half:.4f}" if half else "0",
    ]
