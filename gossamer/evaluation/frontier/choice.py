"""The file that a search ends in; `--kv FILE.json` takes the cache that it recommends."""

import json
import math
from pathlib import Path
from typing import Any

from gossamer.bench.record import describe_device, revision, versions
from gossamer.evaluation.frontier.measuring import Measuring
from gossamer.evaluation.frontier.outcome import Outcome, Row


def choice(outcome: Outcome, measuring: Measuring) -> dict[str, Any]:
    """kv: the recommended spec; the rest says what it is the best of, and for what."""
    best, known = outcome.recommended, measuring.known
    made = None
    if known.calibration is not None and best.config.calibrated:
        made = dict(zip(("file", "sha256"), known.calibration, strict=True))
    return {
        "kv": best.spec,
        "model": known.model,
        "budget": outcome.budget.words,
        "length": outcome.budget.length,
        **_facts(best),
        "reason": outcome.reason(),
        "calibration": made,
        "text": measuring.text.settings,
        "dense_perplexity": outcome.perplexity,
        "frontier": [_line(row) for row in outcome.frontier],
        "measured": [_line(row) for row in outcome.rows],
        "notes": list(outcome.notes),
        **known.setup,
        "device": describe_device(known.device),
        "versions": versions(),
        "revision": revision(),
    }


def write_choice(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _line(row: Row) -> dict[str, Any]:
    return {"kv": row.spec, "role": row.role, **_facts(row)}


def _facts(row: Row) -> dict[str, Any]:
    known = math.isfinite(row.half)
    ends = [round(row.added - row.half, 6), round(row.added + row.half, 6)] if known else None
    return {
        "share": round(row.share, 6),
        "layout_share": round(row.layout_share, 6),
        "bytes_per_token": round(row.bytes_per_token, 2),
        "nll_change": round(row.added, 6),
        "interval": ends,
    }
