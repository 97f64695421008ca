"""Figures of runs: distributions of one, throughput against latency of several rates."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gossamer import plotting
from gossamer.plotting import BLUE, GREY, RED
from gossamer.server.load.client import ClientResult
from gossamer.server.load.report import heading, summary
from gossamer.workloads.bounds import Bounds


def check_plot(path: Path) -> None:
    """Before a long run: ImportError without matplotlib, ValueError for no kind of figure."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot is {str(path)!r}; must end in .png, .svg or .pdf")
    plotting.check()


@contextmanager
def _figure(path: Path, panels: int, height: float) -> Iterator[tuple[Any, Any]]:
    """(figure, its axes), written at the end."""
    with plotting.style():
        figure = plotting.new_figure(3.4 * panels, height)
        yield figure, figure.subplots(1, panels)
        plotting.save(figure, path)


def plot(found: dict[str, Any], results: Sequence[ClientResult], path: Path) -> None:
    """Of one run: the distribution of latencies, and chunks per second over time."""
    with _figure(path, 3, 3.0) as (figure, (first, gaps, rate)):
        good = [s for s in results if s.error is None]
        _distribution(
            first, [s.first for s in good if s.first is not None], "time to first token, ms"
        )
        _distribution(gaps, [gap for s in good for gap in s.gaps], "inter-token latency, ms")
        chunks = [moment for s in results for moment in s.chunks]
        width = max(1.0, found["seconds"] / 60)
        edges = np.arange(0, found["seconds"] + width, width)
        counts, _ = np.histogram(chunks, edges)
        rate.step(edges[:-1], counts / width, where="post", color=BLUE)
        rate.set(xlabel="seconds", ylabel="chunks of answers per second", ylim=(0, None))
        figure.suptitle(f"{heading(found)}\n{summary(found)}", fontsize=8)


def _distribution(axes: Any, seconds: Sequence[float], label: str) -> None:
    values = np.sort(seconds) * 1e3
    axes.plot(values, np.linspace(0, 1, len(values)), color=BLUE)
    axes.set(xlabel=label, ylabel="share", ylim=(0, 1.02), xlim=(0, None))


def plot_rates(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Of several rates: latencies against throughput, and goodput if it was asked for."""
    measured = [found for found in records if found["completed"]]
    wanted = "goodput" in records[0]
    bounds = Bounds(**records[0]["goodput"]["bounds_ms"]) if wanted else Bounds()
    with _figure(path, 3 if wanted else 2, 3.4) as (figure, axes):
        _latency(axes[0], measured, "ttft_ms", "time to first token, ms", bounds.ttft)
        _latency(axes[1], measured, "itl_ms", "inter-token latency, ms")
        if wanted:
            _goodput(axes[2], records)
        title = heading(records[0]) + (f"; bounds: {bounds}".replace("<=", "≤") if wanted else "")
        figure.suptitle(title, fontsize=9)


def _latency(
    axes: Any, records: Sequence[dict[str, Any]], key: str, title: str, bound: float | None = None
) -> None:
    """Lines through the rates in their order: beyond saturation they go straight up, or back."""
    shown = [found for found in records if found[key]]
    tokens = [found["output_tokens_per_second"] for found in shown]
    for name, color in (("p50", BLUE), ("p99", RED)):
        _line(axes, tokens, [found[key][name] for found in shown], color, name)
    for x, found in zip(tokens, shown, strict=True):
        _note(axes, f"{found['load']['rate']:g}/s", (x, found[key]["p50"]), (0, -11), "center")
    if bound is not None:
        axes.axhline(bound, color=GREY, lw=1, ls="--")
        _note(axes, f"bound {bound:g}", (0, bound), (3, 4), "left")
    axes.set(xlabel="output tokens/s", xlim=(0, 1.05 * max(tokens, default=1)), yscale="log")
    axes.margins(y=0.15)
    plotting.plain_log_ticks(axes.yaxis)
    _title(axes, title)


def _goodput(axes: Any, records: Sequence[dict[str, Any]]) -> None:
    rates = [found["load"]["rate"] for found in records]
    done = [found["requests_per_second"] for found in records]
    good = [found["goodput"]["requests_per_second"] for found in records]
    _line(axes, rates, done, GREY, "completed")
    _line(axes, rates, good, BLUE, "within bounds")
    axes.set(xlabel="requests/s sent", xlim=(0, 1.05 * max(rates)), ylim=(0, None))
    _title(axes, "requests/s")


def _line(axes: Any, x: list[float], y: list[float], color: str, name: str) -> None:
    axes.plot(x, y, "o-", color=color, ms=4, clip_on=False, zorder=3, label=name)


def _title(axes: Any, text: str) -> None:
    """What is shown, and names of the lines: above, where no line is in the way."""
    axes.set_title(text, fontsize=9, loc="left")
    place = {"loc": "lower right", "bbox_to_anchor": (1.03, 0.99), "borderaxespad": 0.2}
    axes.legend(frameon=False, ncols=2, fontsize=8, handlelength=1.2, columnspacing=0.9, **place)


def _note(
    axes: Any, text: str, at: tuple[float, float], offset: tuple[int, int], ha: str, **more: Any
) -> None:
    style = {"color": GREY, "fontsize": 7, **more}
    axes.annotate(text, at, xytext=offset, textcoords="offset points", ha=ha, **style)
