"""What the clients got, in numbers: a record, a table, a figure."""

import importlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from gossamer.server.load.client import ClientResult, Target
from gossamer.server.load.workload import Load

PERCENTILES = (50, 90, 99)


def record(target: Target, load: Load, results: Sequence[ClientResult]) -> dict[str, Any]:
    """Of one run. Times in milliseconds; tokens per second over the whole run."""
    good = [s for s in results if s.error is None and not s.left]
    seconds = max(s.ended for s in results) - min(s.sent for s in results)
    tokens = sum(s.tokens for s in good)
    engine = next(
        (e for e in target.stats["engines"] if e["kv"] == load.kv), target.stats["engines"][0]
    )
    return {
        "what": "serve",
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "version": target.stats["version"],
        "model": target.stats["model"],
        **{name: engine[name] for name in ("kv", "device", "dtype", "max_num_seqs")},
        "load": asdict(load),
        "seconds": seconds,
        "completed": len(good),
        "left": sum(s.left for s in results),
        "errors": dict(Counter(s.error for s in results if s.error is not None)),
        "output_tokens": tokens,
        "cached_tokens": sum(s.cached for s in good),
        "requests_per_second": len(good) / seconds,
        "output_tokens_per_second": tokens / seconds,
        "ttft_ms": quantiles([s.first for s in good if s.first is not None]),
        "itl_ms": quantiles([gap for s in good for gap in s.gaps]),
        "latency_ms": quantiles([s.ended - s.sent for s in good]),
    }


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and mean in milliseconds; empty for nothing."""
    if not seconds:
        return {}
    values = np.percentile(seconds, PERCENTILES) * 1e3
    found = {
        f"p{percentile}": float(value)
        for percentile, value in zip(PERCENTILES, values, strict=True)
    }
    return found | {"mean": float(np.mean(seconds)) * 1e3}


def table(found: dict[str, Any]) -> Table:
    """For people."""
    title = f"{found['model']}, {found['kv']}, {found['device']}"
    shown = Table(title=title, title_justify="left")
    shown.add_column("ms")
    for percentile in PERCENTILES:
        shown.add_column(f"p{percentile}", justify="right")
    shown.add_column("mean", justify="right")
    for name, key in (
        ("time to first token", "ttft_ms"),
        ("between tokens", "itl_ms"),
        ("whole request", "latency_ms"),
    ):
        shown.add_row(name, *(f"{value:,.1f}" for value in found[key].values()))
    return shown


def summary(found: dict[str, Any]) -> str:
    """The rest, in one line."""
    errors = ", ".join(f"{count} x {kind}" for kind, count in found["errors"].items())
    parts = [
        f"{found['completed']} completed",
        f"{found['output_tokens_per_second']:,.1f} tokens/s",
        f"{found['requests_per_second']:.2f} requests/s",
        f"{found['seconds']:.1f} s",
        f"errors: {errors or 'none'}",
    ]
    if found["left"]:
        parts.insert(1, f"{found['left']} left on purpose")
    if found["cached_tokens"]:
        parts.insert(-1, f"{found['cached_tokens']} prompt tokens cached")
    return ", ".join(parts)


def write(found: dict[str, Any], folder: Path) -> Path:
    """Add a line to serve.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "serve.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    return path


def check_plot(path: Path) -> None:
    """Before a long run: ImportError without matplotlib, ValueError for no kind of figure."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot is {str(path)!r}; must end in .png, .svg or .pdf")
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'gossamer[plots]'") from None


def plot(found: dict[str, Any], results: Sequence[ClientResult], path: Path) -> None:
    """The distribution of latencies, and chunks per second over time."""
    matplotlib: Any = importlib.import_module("matplotlib")
    figure_class = importlib.import_module("matplotlib.figure").Figure
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = figure_class(figsize=(9, 3), layout="constrained")
        first, gaps, rate = figure.subplots(1, 3)
        good = [s for s in results if s.error is None]
        _distribution(
            first, [s.first for s in good if s.first is not None], "time to first token, ms"
        )
        _distribution(gaps, [gap for s in good for gap in s.gaps], "between tokens, ms")
        chunks = [moment for s in results for moment in s.chunks]
        width = max(1.0, found["seconds"] / 60)
        edges = np.arange(0, found["seconds"] + width, width)
        counts, _ = np.histogram(chunks, edges)
        rate.step(edges[:-1], counts / width, where="post", color="#0b6e99")
        rate.set(xlabel="seconds", ylabel="chunks of answers per second", ylim=(0, None))
        figure.suptitle(f"{found['model']}, {found['kv']}: {summary(found)}", fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def _distribution(axes: Any, seconds: Sequence[float], label: str) -> None:
    values = np.sort(seconds) * 1e3
    axes.plot(values, np.linspace(0, 1, len(values)), color="#0b6e99")
    axes.set(xlabel=label, ylabel="share", ylim=(0, 1.02), xlim=(0, None))
