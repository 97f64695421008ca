"""Loads of whole engines, ours and vLLM's, as a table: the newest second run of each."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.loads import OUTPUT, VLLM_OUTPUT
from benchmarks.reports.markdown import table

HEADERS = ["", "dense", "coded", "vLLM", "vLLM fp8", "dense / vLLM", "coded / vLLM fp8"]
CODED = "k=coded:8x16+4x80+2x32@row,v=coded:4x32+3x64+2x32@row"
COLUMNS = ((OUTPUT, "dense"), (OUTPUT, CODED), (VLLM_OUTPUT, "dense"), (VLLM_OUTPUT, "fp8"))
Run = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One number of one load. more: whether more is better."""

    text: str
    model: str
    work: str
    field: str
    more: bool
    shown: Callable[[float], str]


def _rate(x: float) -> str:
    return f"{x:,.0f}"


def _ms(x: float) -> str:
    return f"{x:.2f} ms"


OUT, PREFILL, STEP = "output tokens/s", "prefill, tokens/s", "decode step"
MIXED = "256 requests, 200 to 2,000 tokens in, 64 to 256 out"
ROWS = (
    Row(f"8B: {MIXED}: {OUT}", "llama-3-8b", "mixed", "output_tps", True, _rate),
    Row(f"8B, 32 x 2,048: {PREFILL}", "llama-3-8b", "decode", "prefill_tps", True, _rate),
    Row(f"8B, 32 x 2,048: {STEP}", "llama-3-8b", "decode", "step_ms", False, _ms),
    Row(f"8B, 32 x 8,000: {PREFILL}", "llama-3-8b", "long", "prefill_tps", True, _rate),
    Row(f"8B, 32 x 8,000: {STEP}", "llama-3-8b", "long", "step_ms", False, _ms),
    Row(f"8B, 64 x 4,000: {STEP}", "llama-3-8b", "64x4000", "step_ms", False, _ms),
    Row(
        f"135M: 400 requests, 100 to 1,000 in, 50 to 200 out: {OUT}",
        *("llama-135m", "small", "output_tps", True, _rate),
    ),
)


def loads() -> str:
    return table(HEADERS, [_cells(row) for row in ROWS])


def _cells(row: Row) -> list[str]:
    found = [_newest(row, path, kv) for path, kv in COLUMNS]
    dense, coded, theirs, fp8 = found
    return [
        row.text,
        *("" if x is None else row.shown(x) for x in found),
        *(_times(row, a, b) for a, b in ((dense, theirs), (coded, fp8))),
    ]


def _times(row: Row, ours: float | None, theirs: float | None) -> str:
    """How many times as fast we are."""
    if ours is None or theirs is None:
        return ""
    return f"{ours / theirs if row.more else theirs / ours:.2f}x"


def _newest(row: Row, path: Path, kv: str) -> float | None:
    wanted = {"model": row.model, "work": row.work, "kv": kv, "run": "second"}
    lines = map(json.loads, path.read_text().splitlines())
    found = [float(line[row.field]) for line in lines if line.items() >= wanted.items()]
    return found[-1] if found else None
