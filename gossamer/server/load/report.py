"""Records of runs for people: tables and a line of the rest."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from gossamer.server.load.measures import PERCENTILES

LATENCIES = {
    "time to first token": "ttft_ms",
    "inter-token latency": "itl_ms",
    "time per output token": "tpot_ms",
    "end to end": "e2e_ms",
}


def heading(found: dict[str, Any]) -> str:
    """What was measured."""
    name = found["load"]["workload"]
    parts = [found["model"], found["kv"], found["device"], *([name] if name else [])]
    return ", ".join(parts)


def table(found: dict[str, Any]) -> Table:
    """Of one run: a row per latency."""
    shown = Table(title=heading(found), title_justify="left")
    shown.add_column("ms")
    for percentile in PERCENTILES:
        shown.add_column(f"p{percentile}", justify="right")
    shown.add_column("mean", justify="right")
    for name, key in LATENCIES.items():
        shown.add_row(name, *(f"{value:,.1f}" for value in found[key].values()))
    return shown


def rates_table(records: Sequence[dict[str, Any]]) -> Table:
    """Of several rates: a row per rate, latencies in ms as p50 / p99."""
    shown = Table(title=f"{heading(records[0])}; ms: p50 / p99", title_justify="left")
    for name in ("sent/s", "done/s", "output tok/s", "total tok/s", "TTFT ms", "ITL ms", "E2E ms"):
        shown.add_column(name, justify="right")
    if "goodput" in records[0]:
        shown.add_column("goodput/s", justify="right")
    shown.add_column("errors", justify="right")
    for found in records:
        row = [
            f"{found['load']['rate']:g}",
            f"{found['requests_per_second']:.2f}",
            f"{found['output_tokens_per_second']:,.1f}",
            f"{found['total_tokens_per_second']:,.1f}",
            *(_middle_and_tail(found[key]) for key in ("ttft_ms", "itl_ms", "e2e_ms")),
        ]
        if met := found.get("goodput"):
            row.append(f"{met['requests_per_second']:.2f} ({met['share']:.0%})")
        shown.add_row(*row, str(sum(found["errors"].values())))
    return shown


def _middle_and_tail(found: dict[str, float]) -> str:
    return f"{found['p50']:,.1f} / {found['p99']:,.1f}" if found else ""


def summary(found: dict[str, Any]) -> str:
    """The rest of a run, in one line."""
    errors = ", ".join(f"{count} x {kind}" for kind, count in found["errors"].items())
    parts = [
        f"{found['completed']} completed",
        f"{found['output_tokens_per_second']:,.1f} output tokens/s",
        f"{found['total_tokens_per_second']:,.1f} total tokens/s",
        f"{found['requests_per_second']:.2f} requests/s",
        f"{found['seconds']:.1f} s",
        f"errors: {errors or 'none'}",
    ]
    if found["left"]:
        parts.insert(1, f"{found['left']} left on purpose")
    if found["cached_tokens"]:
        parts.insert(-1, f"{found['cached_tokens']} prompt tokens cached")
    if met := found.get("goodput"):
        within = f"{met['requests_per_second']:.2f} requests/s within bounds ({met['share']:.0%})"
        parts.insert(-1, f"goodput {within}")
    return ", ".join(parts)
