"""What `gossamer eval` does, apart from its command line."""

import gc
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer
from rich.console import Console

from gossamer.engine import EngineConfig
from gossamer.engine.kv_cache import parse_kv
from gossamer.evaluation import plots
from gossamer.evaluation.experiment import Experiment, Open, Result, evaluate
from gossamer.evaluation.peers import Build, Peer, parse_peer
from gossamer.evaluation.report import BASELINE, NOTE, markdown, rich_table
from gossamer.evaluation.store import Store
from gossamer.evaluation.subject import EngineSubject, spec_name
from gossamer.evaluation.suite import Options, check_tasks, make_tasks
from gossamer.integrations.transformers import load_model
from gossamer.models import EMBEDDED, Source, open_model
from gossamer.models.embedded import embedded_path

LOG_WIDTH = 140  # a log has room for whole rows
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Job:
    """Tasks to run with each cache and each peer (see gossamer.evaluation.peers).

    baseline: a dense cache first, whether it is named or not.
    """

    model: str
    caches: list[str]
    tasks: list[str]
    options: Options
    engine: dict[str, Any]
    peers: list[str] = field(default_factory=list)
    baseline: bool = True
    results: Path | None = None
    plot: Path | None = None


def numbers(
    name: str, text: str | None, kind: Callable[[str], Number]
) -> tuple[Number, ...] | None:
    """The numbers of `1,2,3`. Raises ValueError."""
    try:
        return None if text is None else tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--{name} is {text!r}; must be numbers, separated by commas") from None


def run(job: Job, *, as_markdown: bool) -> None:
    """Run and print. Raises ValueError, OSError or ImportError for bad input, before it runs."""
    source = open_model(job.model)
    config = EngineConfig(model=source, **job.engine)
    specs = _specs(job, source, config)
    longest = config.max_model_len or source.config.max_positions
    tasks = make_tasks(job.tasks, job.options, longest)
    check_tasks(tasks, source.tokenizer(), longest)
    if job.plot is not None:
        plots.check()
    experiment = _experiment(job, source, config, tasks, specs)
    subjects: dict[str, Open] = {
        name: partial(_open, source, spec, job.engine) for name, spec in specs.items()
    }
    subjects |= _peers(job, config, source)
    results = evaluate(experiment, subjects, Store(job.results), progress=True)
    _print(results, as_markdown=as_markdown)
    if job.plot is not None:
        for file in plots.draw(results, job.plot):
            typer.echo(f"wrote {file}", err=True)
    failures = [r for r in results if r.entry.error]
    for result in failures:
        typer.echo(f"error: {result.task}, {result.subject}: {result.entry.error}", err=True)
    if failures:
        raise typer.Exit(1)


def _specs(job: Job, source: Source, config: EngineConfig) -> dict[str, str]:
    """Names of rows and their specs. Raises ValueError for one that the model cannot have."""
    dtype = config.resolved_dtype(config.resolved_device(), source.config.dtype)
    wanted = [BASELINE, *job.caches] if job.baseline or not job.caches else job.caches
    specs = {spec_name(spec): spec for spec in wanted}  # a cache that is named twice runs once
    for spec in specs.values():
        parse_kv(spec, dtype).block_bytes(source.config.kv_shape)
        if _calibrated(spec) and not (config.calibration or source.calibration):
            raise ValueError(
                f"--kv {spec} needs a calibration; make one by `gossamer calibrate {job.model} "
                "--text FILE -o FILE` and name it by --calibration"
            )
    return specs


def _calibrated(spec: str) -> bool:
    return parse_kv(spec, torch.float32).calibrated


def _experiment(
    job: Job, source: Source, config: EngineConfig, tasks: list[Any], specs: dict[str, str]
) -> Experiment:
    device = config.resolved_device()
    dtype = str(config.resolved_dtype(device, source.config.dtype)).removeprefix("torch.")
    path = config.calibration or source.calibration
    made = {} if path is None else {"calibration": _digest(Path(path))}
    return Experiment(
        model=str(Path(job.model).resolve()) if Path(job.model).exists() else job.model,
        tasks=tasks,
        seed=job.options.seed,
        setup={"dtype": dtype, "device": device.type},
        setups={name: made for name, spec in specs.items() if _calibrated(spec)},
        device=str(device),
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _open(source: Source, spec: str, engine: dict[str, Any]) -> EngineSubject:
    """First, what is left of an earlier one leaves memory."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return EngineSubject(source, spec, **engine)


def _peers(job: Job, config: EngineConfig, source: Source) -> dict[str, Open]:
    """How other methods are opened, by their specs. Raises ValueError for one that is wrong."""
    builders = {spec: parse_peer(spec) for spec in job.peers}
    device = config.resolved_device()
    dtype = config.resolved_dtype(device, source.config.dtype)
    path = embedded_path(job.model) if job.model in EMBEDDED else Path(job.model)
    model = cache(partial(load_model, path, dtype=dtype, device=str(device)))  # once for all
    return {spec: partial(_open_peer, build, model) for spec, build in builders.items()}


def _open_peer(build: Build, model: Callable[[], tuple[Any, Any]]) -> Peer:
    return build(*model())


def _print(results: list[Result], *, as_markdown: bool) -> None:
    if as_markdown:
        typer.echo(markdown(results))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=LOG_WIDTH)
    console.print(rich_table(results))
    console.print(NOTE, style="dim", highlight=False)
