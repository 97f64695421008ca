"""Figures of results: quality against memory, bars for each task, and where needles are found.

Each is written as PNG and SVG.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer import plotting
from gossamer.evaluation.experiment import Result
from gossamer.evaluation.pareto import front
from gossamer.evaluation.report import BASELINE, Summary, summarise, tasks_of

FORMATS = ("png", "svg")


def draw(results: Sequence[Result], folder: Path, baseline: str = BASELINE) -> list[Path]:
    """Write what the results allow; the files. Raises ImportError without matplotlib."""
    plotting.check()
    found = summarise(results, baseline)
    by_task = {
        task: [s for s in found if s.result.task == task and s.value is not None]
        for task in tasks_of(results)
    }
    by_task = {task: summaries for task, summaries in by_task.items() if summaries}
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    with plotting.style():
        if by_task:
            files += save(_memory(by_task), folder / "quality-memory")
            files += save(_bars(by_task), folder / "tasks")
        needles = [r for r in results if r.entry.scores and _has_depths(r)]
        if needles:
            files += save(_heat(needles), folder / "needle")
    return files


def frontier(points: Sequence[tuple[float, float]], *, higher: bool) -> list[tuple[float, float]]:
    """The points (share, quality) that no other beats in both, from small shares to large ones."""
    return front({p: (p[0], -p[1] if higher else p[1]) for p in points})


def _panels(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    figure = plotting.new_figure(width * count, height)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _memory(by_task: dict[str, list[Summary]]) -> Any:
    figure, panels = _panels(len(by_task), 4.6, 3.8)
    for axes, (task, summaries) in zip(panels, by_task.items(), strict=True):
        for summary in summaries:
            x, y, errors = _point(summary)
            axes.errorbar([x], [y], yerr=errors, fmt="o", color=plotting.BLUE, capsize=2)
            axes.annotate(
                summary.result.subject, (x, y), (4, 4), textcoords="offset points", fontsize=6
            )
        points = [_point(summary)[:2] for summary in summaries]
        line = frontier(points, higher=summaries[0].result.kind == "accuracy")
        axes.plot(*zip(*line, strict=True), color=plotting.ORANGE, linewidth=1, zorder=0)
        axes.set_xlabel("KV cache, share of dense float16")
        axes.set_ylabel(_quantity(summaries[0]))
        axes.set_title(task)
        axes.margins(x=0.15)
    return figure


def _bars(by_task: dict[str, list[Summary]]) -> Any:
    tallest = max(len(summaries) for summaries in by_task.values())
    figure, panels = _panels(len(by_task), 4.6, 1.2 + 0.35 * tallest)
    for axes, (task, summaries) in zip(panels, by_task.items(), strict=True):
        for place, summary in enumerate(summaries):
            _, value, errors = _point(summary)
            color = plotting.ORANGE if summary.change is None else plotting.BLUE
            axes.barh(place, value, xerr=errors, color=color, capsize=2)
        axes.set_yticks(range(len(summaries)), [s.result.subject for s in summaries], fontsize=6)
        axes.invert_yaxis()
        axes.set_xlabel(_quantity(summaries[0]))
        axes.set_title(task)
    return figure


def _heat(results: Sequence[Result]) -> Any:
    """Rows are depths, columns lengths; one panel for each subject."""
    figure, panels = _panels(len(results), 3.4, 3.2)
    image = None
    for axes, result in zip(panels, results, strict=True):
        cells: dict[tuple[float, int], list[float]] = {}
        for score in result.entry.scores.values():
            place = (score.meta["depth"], score.meta["length"])
            cells.setdefault(place, []).append(score.value)
        depths, lengths = (sorted({place[i] for place in cells}) for i in (0, 1))
        grid = [[_mean(cells.get((d, int(n)), [])) for n in lengths] for d in depths]
        axes.grid(visible=False)
        image = axes.imshow(grid, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        axes.set_xticks(range(len(lengths)), [f"{n:,}" for n in lengths])
        axes.set_yticks(range(len(depths)), [f"{d:.0%}" for d in depths])
        axes.set_xlabel("tokens")
        axes.set_ylabel("depth")
        axes.set_title(result.subject, fontsize=7)
    figure.colorbar(image, ax=panels, label="found")
    return figure


def _has_depths(result: Result) -> bool:
    return all({"depth", "length"} <= set(s.meta) for s in result.entry.scores.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _point(summary: Summary) -> tuple[float, float, list[list[float]]]:
    """Share, value, and how far the interval reaches below and above."""
    assert summary.value is not None, "summaries without a value are not drawn"
    found = summary.value
    bounds = [[found.value - found.low], [found.high - found.value]]
    return summary.result.entry.share, found.value, bounds


def _quantity(summary: Summary) -> str:
    return "accuracy" if summary.result.kind == "accuracy" else "perplexity"


def save(figure: Any, stem: Path) -> list[Path]:
    """In all FORMATS; the files."""
    files = [stem.with_suffix(f".{kind}") for kind in FORMATS]
    for file in files:
        plotting.save(figure, file)
    return files
