"""Tables of decode steps, made from result lines: the engine, and `generate` of transformers."""

from benchmarks.reports.markdown import table
from gossamer.bench import Record

WHAT = {"engine_decode": "decode step", "engine_throughput": "equal KV memory"}
WHERE = ["what", "model", "sequences x context", "dtype", "by", "cache"]
ENGINE = [*WHERE, "step", "tokens/s", "of floor", "KV cache"]
PREFILL = ["model", "dtype", "prompt", "cache", "by", "time", "first of its length"]
HANDOFF = ["cache", "dtype", "bytes", "of 16 bits", "10 Gbit/s", "100 Gbit/s", "published"]
HANDOFF += ["first token: found", "computed", "own prefix cache"]
TRANSFORMERS = ["cache", "KV cache", "peak memory", "prefill", "step", "tokens/s"]


def engine_table(records: list[Record]) -> str:
    """Decode steps and throughput, of the engine and of transformers where both ran."""
    rows = [_engine_row(r) for r in records if r.op in WHAT]
    return table(ENGINE, rows) if rows else "Not measured yet."


def step_table(records: list[Record]) -> str:
    """Decode steps of one run by cache, the slowest first."""
    found = sorted(records, key=lambda r: r.median_ms, reverse=True)
    rows = [
        [
            f"`{_names(r.variant)[1]}`",
            f"{r.median_ms:.2f} ms",
            f"{r.facts['kv_bytes'] / 1e9:.2f} GB",
        ]
        for r in found
        if r.op == "engine_decode"
    ]
    return table(["cache", "step", "KV cache"], rows) if rows else "Not measured yet."


def _engine_row(record: Record) -> list[str]:
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


def prefill_table(records: list[Record]) -> str:
    """Prompts by themselves, of this version and of one before it."""
    found = [r for r in records if r.op == "engine_prefill"]
    rows = [
        [
            *(_names(r.variant)[0], r.dtype, f"{r.shape[1]:,}", f"`{_names(r.variant)[1]}`"),
            *(r.backend, f"{r.median_ms:,.4g} ms", f"{r.facts['first_ms']:,.4g} ms"),
        ]
        for r in sorted(found, key=lambda r: (r.variant, r.shape, r.backend))
    ]
    return table(PREFILL, rows) if rows else "Not measured yet."


def handoff_table(records: list[Record]) -> str:
    """Prompts that one process computes and another decodes."""
    rows = [_handoff_row(r) for r in records if r.op == "engine_handoff"]
    return table(HANDOFF, rows) if rows else "Not measured yet."


def _handoff_row(record: Record) -> list[str]:
    facts = record.facts
    times = [facts["prefill_ms"], record.median_ms, facts["alone_ms"], facts["alone_cached_ms"]]
    return [
        *(f"`{_names(record.variant)[1]}`", record.dtype, f"{record.bytes / 1e6:.1f} MB"),
        f"{facts['share_of_16_bits']:.0%}",
        *(f"{facts[f'wire_{rate}_gbit_ms']:.3g} ms" for rate in (10, 100)),
        *(f"{ms:,.4g} ms" for ms in times),
    ]


def _names(variant: str) -> tuple[str, str]:
    """`model, cache, how` -> model and cache, whose own commas have no space after them."""
    model, cache, *_ = variant.split(", ")
    return model.removesuffix(" with random weights"), cache


def transformers_table(records: list[Record]) -> str:
    """Memory and speed of `generate`; tokens/s by the median step."""
    rows = [_transformers_row(r) for r in records if r.op == "transformers_cache"]
    return table(TRANSFORMERS, rows) if rows else "Not measured yet."


def _transformers_row(record: Record) -> list[str]:
    facts, ours = record.facts, record.backend == "gossamer"
    return [
        f"`{record.variant}`" if ours else record.backend,
        f"{facts['cache_bytes'] / 1e9:.2f} GB",
        f"{facts['peak_bytes'] / 1e9:.2f} GB",
        f"{facts['prefill_seconds']:.1f} s",
        f"{record.median_ms:.1f} ms ({record.low_ms:.1f} to {record.high_ms:.1f})",
        f"{record.shape[0] * 1e3 / record.median_ms:.0f}",
    ]
