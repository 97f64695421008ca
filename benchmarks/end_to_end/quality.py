"""What KV caches cost: perplexity and retrieval with the engine, and with other methods.

SmolLM2-135M-Instruct, 16,384 tokens of WikiText-2 in windows of 2,048, and 100 lookups. `make
quality` runs it: two hours on two cores, minutes on a GPU. Scores are kept as they come, so that it
can be stopped; the rows of the table are written at the end, from all scores there are.
"""

import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gossamer.engine.auto import settle
from gossamer.engine.config import EngineConfig
from gossamer.evaluation.experiment import Experiment, Open, Result, evaluate
from gossamer.evaluation.peers import parse_peer
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.report import BASELINE, Summary, summarise
from gossamer.evaluation.retrieval import Lookup
from gossamer.evaluation.store import Store
from gossamer.evaluation.subject import EngineSubject
from gossamer.evaluation.tasks import Task
from gossamer.integrations.transformers import load_model
from gossamer.kv import KVConfig
from gossamer.models import open_model
from gossamer.models.embedded import embedded_path

MODEL = "smollm2"
TEXT = Path(__file__).parents[1] / "data/wikitext2-test-excerpt.txt"
ROWS = Path("benchmarks/quality/smollm2-135m.jsonl")
SCORES = Path("build/quality.jsonl")
TOLERANCE = 0.005

# Spec and the change in NLL that a simulation with masks gave, without packing anything.
SIMULATED = {
    "sparse:k=32,v=32": 0.037,
    "sparse:k=32,v=32,v_basis=pca,k_policy=weighted": 0.008,
    "sparse:k=19,v=19": 0.203,
    "sparse:k=19,v=19,basis=pca,k_policy=weighted": 0.103,
    "sparse:k=19,v=19,basis=pca,k_policy=weighted,window=128": 0.067,
    "sparse:k=13,v=13": 0.396,
    "sparse:k=13,v=13,basis=pca,k_policy=weighted": 0.249,
    "sparse:k=32,v=19,basis=pca,k_policy=weighted": 0.030,
    "k=dense:int4@channel,v=dense:int4@group": 0.005,
    "k=dense:int3@channel,v=dense:int3@group": 0.032,
    "k=dense:int2@channel,v=dense:int2@group": 0.249,
    "k=dense:int4@channel,v=sparse:32:int4,v_basis=pca": 0.009,
    "k=dense:int4@channel,v=sparse:19:int4,v_basis=pca": 0.025,
    "k=sparse:32:int4@channel,v=sparse:19:int4,basis=pca,k_policy=weighted": 0.030,
}
# Chosen on validation text; keys in their own channels, ranked by the loss's gradient.
CHOSEN = (
    "sparse:k=24,v=16,v_basis=pca,k_policy=gradient",
    "sparse:k=24,v=16,v_basis=pca,k_policy=gradient,sink=32",
    "k=sparse:40:int4@channel,v=sparse:40:int4,v_basis=pca,k_policy=gradient",
    "k=sparse:32:int4@channel,v=sparse:32:int4,v_basis=pca,k_policy=gradient,sink=32",
    "k=sparse:32:int4@channel,v=sparse:24:int3,v_basis=pca,k_policy=gradient",
    "k=sparse:24:int4,v=sparse:16:int4,v_basis=pca,k_policy=gradient",
    "k=sparse:24:int4,v=sparse:16:int4,v_basis=pca,k_policy=gradient,sink=32",
)
# Coded rows: bits of K and V chosen on validation text.
CODED = (
    "k=coded:8x8+4x40+2x16@row,v=coded:4x16+3x32+2x16@row",
    "k=coded:8x8+4x16+2x32+0x8@row,v=coded:4x16+3x32+2x16@row",
    "k=coded:4x8+3x16+2x24+0x16@row,v=coded:4x8+2x48+0x8@row",
    "k=coded:4x8+3x16+2x24+0x16@row,v=coded:4x8+2x48+0x8@row,window=128",
)
PLAIN = ("dense:int8", "dense:int4")
AUTO = ("auto:25%", "auto:20%", "auto:16%")
PEERS = (
    "exact", "fp8", "int8", "kivi:4", "kivi:3", "kivi:2", "turboquant:4", "turboquant:3",
    "mustafar:0.5", "mustafar:0.7", "think:0.5", "streaming:0.5", "streaming:0.25", "snapkv:0.5",
    "snapkv:0.25", "snapkv:0.5,before=32", "snapkv:0.25,before=32", "expected:0.5", "expected:0.25",
    "quest:0.25",
)  # fmt: skip


@dataclass(frozen=True)
class Quality:
    """One cache. share: bytes relative to dense float16 beyond window and sink; peer: not ours.

    nll_half, lookup_low, lookup_high: ends of intervals for 95%.
    """

    spec: str
    peer: bool
    share: float
    perplexity: float
    nll_change: float
    nll_half: float
    simulated: float | None
    lookup: float
    lookup_low: float
    lookup_high: float
    model: str
    tokens: int
    dtype: str
    device: str
    versions: dict[str, str]
    revision: str

    @property
    def off(self) -> bool:
        return self.simulated is not None and abs(self.nll_change - self.simulated) > TOLERANCE


def subjects(device: str, dtype: str) -> dict[str, Open]:
    """The engine with each cache, and each peer on one model in transformers."""
    options = {"device": device, "dtype": dtype, "kv_memory": "2GB", "enforce_eager": True}
    specs = (BASELINE, *PLAIN, *SIMULATED, *CHOSEN, *CODED)
    source = open_model(MODEL)
    found: dict[str, Open] = {s: partial(EngineSubject, source, s, **options) for s in specs}

    def chosen(preset: str) -> EngineSubject:
        settled, _ = settle(EngineConfig(model=source, kv=preset, device=device, dtype=dtype))
        return EngineSubject(source, KVConfig.of(settled.kv, torch.float32), **options)

    found |= {preset: partial(chosen, preset) for preset in AUTO}
    loaded: list[Any] = []

    def peer(spec: str) -> Any:
        if not loaded:
            model = load_model(embedded_path(MODEL), getattr(torch, dtype), device)
            loaded.append(model)
        return parse_peer(spec)(*loaded[0])

    return found | {spec: partial(peer, spec) for spec in PEERS}


def rows(results: list[Result], dtype: str) -> list[Quality]:
    """One per cache; a cache whose tasks have not both finished has none."""
    by_subject: dict[str, dict[str, Summary]] = {}
    for summary in summarise(results):
        if summary.result.entry.finished:
            by_subject.setdefault(summary.result.subject, {})[summary.result.task] = summary
    label = open_model(MODEL).name
    return [
        _row(spec, found["perplexity"], found["lookup"], label, dtype)
        for spec, found in by_subject.items()
        if set(found) == {"perplexity", "lookup"}
    ]


def _row(spec: str, nll: Summary, lookup: Summary, model: str, dtype: str) -> Quality:
    assert nll.value is not None, "a finished task has a value"
    assert lookup.value is not None, "a finished task has a value"
    entry = nll.result.entry
    change = nll.change
    return Quality(
        spec=spec,
        peer=spec in PEERS,
        share=round(entry.share, 4),
        perplexity=round(nll.value.value, 3),
        nll_change=0.0 if change is None else round(change.value, 5),
        nll_half=0.0 if change is None else round(change.half, 5),
        simulated=SIMULATED.get(spec),
        lookup=round(lookup.value.value, 4),
        lookup_low=round(lookup.value.low, 4),
        lookup_high=round(lookup.value.high, 4),
        model=model,
        tokens=round(math.fsum(s.weight for s in entry.scores.values())),
        dtype=dtype,
        **entry.where,
    )


def main(
    only: Annotated[list[str] | None, typer.Argument(help="some of the caches and peers")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dtype: Annotated[str, typer.Option(help="of the model")] = "float32",
    scores: Annotated[Path, typer.Option(help="every score; a run goes on from there")] = SCORES,
    output: Annotated[Path, typer.Option("-o", "--output", help="the rows of the table")] = ROWS,
) -> None:
    """Measure; exit code 1 when a row is not within 0.005 of its simulation, or has failed."""
    tasks: list[Task] = [Perplexity.of_file(TEXT), Lookup()]
    experiment = Experiment(MODEL, tasks, setup={"device": device, "dtype": dtype}, device=device)
    everything = subjects(device, dtype)
    if unknown := sorted(set(only or ()) - set(everything)):
        raise typer.BadParameter(f"{unknown} are not in the table")
    wanted = {spec: opened for spec, opened in everything.items() if not only or spec in only}
    results = evaluate(experiment, wanted, Store(scores), progress=True)
    found = rows(results, dtype)
    if not only:  # some rows are no table
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("".join(json.dumps(asdict(row)) + "\n" for row in found))
    for row in found:
        typer.echo(
            f"{row.spec:74s} {row.share:6.1%} {row.nll_change:+.4f} ± {row.nll_half:.4f} "
            f"{row.lookup:.0%} {'OFF' if row.off else ''}"
        )
    failures = [r for r in results if r.entry.error]
    for result in failures:
        typer.echo(f"{result.task}, {result.subject}: {result.entry.error}", err=True)
    if failures or any(row.off for row in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
