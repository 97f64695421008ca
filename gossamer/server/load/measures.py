"""What the clients got, in numbers: one record for each run."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gossamer.bench.record import revision, versions
from gossamer.server.load.client import ClientResult
from gossamer.server.load.goodput import goodput
from gossamer.server.load.schedule import Load
from gossamer.server.load.target import Target
from gossamer.workloads.bounds import Bounds

PERCENTILES = (50, 90, 95, 99)
FILE = "serve.jsonl"
ENGINE = ("kv", "device", "dtype", "max_num_seqs", "max_model_len")


def record(
    target: Target,
    load: Load,
    results: Sequence[ClientResult],
    bounds: Bounds | None = None,
    **client: float,
) -> dict[str, Any]:
    """Of one run. Times in milliseconds; rates over the whole run. client: facts about it."""
    good = [s for s in results if s.error is None and not s.left]
    seconds = max(s.ended for s in results) - min(s.sent for s in results)
    engine = target.engine(good[0].kv if good else load.kv)
    found = {
        "what": "serve",
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "version": target.stats["version"],
        "model": target.stats["model"],
        **{name: engine[name] for name in ENGINE if name in engine},
        "client": {"versions": versions(), "revision": revision(), **client},
        "load": asdict(load),
        "seconds": seconds,
        "completed": len(good),
        "left": sum(s.left for s in results),
        "errors": dict(Counter(s.error for s in results if s.error is not None)),
        **_throughput(good, seconds),
        **_latencies(good),
    }
    return found if bounds is None else found | {"goodput": goodput(bounds, results, seconds)}


def _throughput(good: Sequence[ClientResult], seconds: float) -> dict[str, float]:
    prompts, tokens = sum(s.prompt_tokens for s in good), sum(s.tokens for s in good)
    return {
        "prompt_tokens": prompts,
        "cached_tokens": sum(s.cached for s in good),
        "output_tokens": tokens,
        "requests_per_second": len(good) / seconds,
        "output_tokens_per_second": tokens / seconds,
        "total_tokens_per_second": (prompts + tokens) / seconds,
    }


def _latencies(good: Sequence[ClientResult]) -> dict[str, dict[str, float]]:
    return {
        "ttft_ms": quantiles([s.first for s in good if s.first is not None]),
        "itl_ms": quantiles([gap for s in good for gap in s.gaps]),
        "tpot_ms": quantiles([s.per_token for s in good if s.per_token is not None]),
        "e2e_ms": quantiles([s.whole for s in good]),
    }


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90, p95, p99 and mean in milliseconds; empty for nothing."""
    if not seconds:
        return {}
    values = np.percentile(seconds, PERCENTILES) * 1e3
    found = {
        f"p{percentile}": float(value)
        for percentile, value in zip(PERCENTILES, values, strict=True)
    }
    return found | {"mean": float(np.mean(seconds)) * 1e3}


def write(found: dict[str, Any], folder: Path) -> Path:
    """Add a line to the file of records in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    return path
