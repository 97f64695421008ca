"""The figure of decode attention: speed-up against sparsity, with the limit that bytes set."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.reports.decode import FIGURE, points_of_sweep
from benchmarks.suites.decode_cases import SWEEP_CONTEXTS
from gossamer.bench import Record, read_records
from gossamer.bench.suite import RESULTS

STYLE = {
    "svg.hashsalt": "gossamer",  # the same ids in every run
    "svg.fonttype": "none",  # text as text, so no font of this machine is in the file
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLORS = ("#0b6e99", "#d9730d")


def draw(records: list[Record], target: Path) -> bool:
    """Write the figure; False, and nothing written, when there is nothing to draw."""
    lines = {context: points_of_sweep(records, context) for context in SWEEP_CONTEXTS}
    if not any(lines.values()):
        return False
    # By name: an extra that neither the other reports nor the type checker need.
    mpl: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    with mpl.rc_context(STYLE):
        axes = (figure := figures.Figure(figsize=(7, 4.2), layout="constrained")).subplots()
        for (context, line), color in zip(lines.items(), COLORS, strict=True):
            x, y, _ = zip(*line, strict=True) if line else ((), (), ())
            label = f"8 sequences of {context:,} tokens"
            axes.plot([100 * s for s in x], y, marker="o", color=color, label=label)
        x, _, limit = zip(*max(lines.values(), key=len), strict=True)
        axes.plot([100 * s for s in x], limit, "--", color="0.45", label="limit set by the bytes")
        _label(axes, records[0].device)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    return True


def _label(axes: Any, device: str) -> None:
    axes.axhline(1, color="0.8", linewidth=1, zorder=0)
    axes.set_xlabel("entries of K and V left out, %")
    axes.set_ylabel("speed-up over the fastest dense peer")
    axes.set_ylim(bottom=0)
    axes.set_title(f"Decode attention, 32 query and 8 KV heads of 128, fp16, {device}", fontsize=10)
    axes.legend(frameon=False, loc="upper left")


def main(
    results: Annotated[Path, typer.Option(help="folder of the result files")] = RESULTS,
    target: Annotated[Path, typer.Option(help="the file to write")] = FIGURE,
) -> None:
    """Draw the first device that has the points."""
    for file in sorted(results.glob("*/decode_attention.jsonl")):
        if draw(read_records(file), target):
            typer.echo(f"{target} from {file}")
            return
    typer.echo("no result lines to draw decode attention from")


if __name__ == "__main__":
    typer.run(main)
