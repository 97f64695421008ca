"""The table of docs/transformers.md, made from result lines."""

from benchmarks.markdown import table
from gossamer.bench import Record

COLUMNS = ["cache", "KV cache", "peak memory", "prefill", "step", "tokens/s"]
OP = "transformers_cache"


def transformers_table(records: list[Record]) -> str:
    """Memory and speed of `generate`; tokens/s by the median step."""
    rows = [_row(r) for r in records if r.op == OP]
    return table(COLUMNS, rows) if rows else "Not measured yet."


def _row(record: Record) -> list[str]:
    facts, ours = record.facts, record.backend == "gossamer"
    return [
        f"`{record.variant}`" if ours else record.backend,
        f"{facts['cache_bytes'] / 1e9:.2f} GB",
        f"{facts['peak_bytes'] / 1e9:.2f} GB",
        f"{facts['prefill_seconds']:.1f} s",
        f"{record.median_ms:.1f} ms ({record.low_ms:.1f} to {record.high_ms:.1f})",
        f"{record.shape[0] * 1e3 / record.median_ms:.0f}",
    ]
