"""What weights in few bits cost in quality, alone and with a compressed cache: SmolLM2, WikiText-2.

    python -m benchmarks.end_to_end.weights_quality

The model's own file has 4 bits (Q4_1: 16 levels for each 32 weights), so int4 in groups of 32 finds
most of its levels again; a checkpoint in 16 bits would lose more. "int4 by row" is for comparison:
weights rounded to 4 bits with one scale for each row.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from gossamer.evaluation.experiment import Experiment, Open, evaluate
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.report import Summary, summarise
from gossamer.evaluation.store import Store
from gossamer.evaluation.subject import EngineSubject
from gossamer.models import Source, open_model
from gossamer.models.source import WHOLE, StoredTensor

MODEL = "smollm2"
HERE = Path(__file__).parents[1]
TEXT = HERE / "data/wikitext2-test-excerpt.txt"
ROWS, SCORES = HERE / "quality/weights/weights-smollm2.jsonl", Path("build/weights-scores.jsonl")
CODED = "coded:23.5%"
BASELINE, BY_ROW = "float, dense", "int4 by row, dense"
SUBJECTS = (
    *(("float", "dense"), ("auto", "dense"), ("int8", "dense"), ("fp8", "dense")),
    *(("int4", "dense"), ("auto", CODED), ("int4", CODED)),
)


@dataclass(frozen=True)
class WeightsQuality:
    """One row. nll_half: of the interval for 95%."""

    weights: str
    kv: str
    perplexity: float
    nll_change: float
    nll_half: float
    tokens: int
    model: str
    device: str
    versions: dict[str, str]
    revision: str


class ByRow:
    """A source whose matrices of layers have 4 bits with one scale for each row."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def tensors(self, *args: Any, **options: Any) -> Iterator[tuple[str, StoredTensor]]:
        for name, tensor in self.source.tensors(*args, **options):
            rounded = "layers" in name and len(tensor.shape) == 2
            yield name, _by_row(tensor[WHOLE]) if rounded else tensor


def _by_row(weight: Tensor) -> Tensor:
    step = weight.abs().amax(1, keepdim=True) / 7
    return (weight / step).round() * step


def subjects() -> dict[str, Open]:
    source = open_model(MODEL)
    options = {"device": "cpu", "dtype": "float32", "kv_memory": "1GB"}
    found: dict[str, Open] = {
        f"{weights}, {kv}": partial(EngineSubject, source, kv, weights=weights, **options)
        for weights, kv in SUBJECTS
    }
    by_row: Any = ByRow(source)
    return found | {BY_ROW: partial(EngineSubject, by_row, "dense", weights="float", **options)}


def row(found: Summary, model: str) -> WeightsQuality:
    assert found.value is not None, "a finished task has a value"
    weights, kv = found.result.subject.split(", ")
    change = found.change
    return WeightsQuality(
        weights=weights,
        kv=kv,
        perplexity=round(found.value.value, 3),
        nll_change=0.0 if change is None else round(change.value, 5),
        nll_half=0.0 if change is None else round(change.half, 5),
        tokens=round(math.fsum(s.weight for s in found.result.entry.scores.values())),
        model=model,
        **found.result.entry.where,
    )


def main(
    scores: Annotated[Path, typer.Option(help="every score; a run goes on from there")] = SCORES,
    output: Annotated[Path, typer.Option("-o", "--output", help="the rows of the table")] = ROWS,
) -> None:
    """Measure; exit code 1 where something failed."""
    torch.set_num_threads(2)
    setup = {"device": "cpu", "dtype": "float32"}
    experiment = Experiment(MODEL, [Perplexity.of_file(TEXT)], setup=setup, device="cpu")
    results = evaluate(experiment, subjects(), Store(scores), progress=True)
    failures = [r for r in results if r.entry.error]
    for result in failures:
        typer.echo(f"{result.subject}: {result.entry.error}", err=True)
    if failures:
        raise typer.Exit(1)
    rows = [row(summary, open_model(MODEL).name) for summary in summarise(results, BASELINE)]
    output.write_text("".join(json.dumps(asdict(each)) + "\n" for each in rows))
    for each in rows:
        typer.echo(f"{each.weights:12s} {each.kv:12s} {each.nll_change:+.4f} ± {each.nll_half:.4f}")


if __name__ == "__main__":
    typer.run(main)
